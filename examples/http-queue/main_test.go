package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

// A denied message is answered with 202 and delivered later. Each message is delivered once.
func TestQueue(t *testing.T) {
	server := redistest.Start(t)
	limiter, err := ratelimit.Open(t.Context(), ratelimit.Options{Dir: rulefiles.Dir("rules"), Strict: true, Store: redisstore.New(redisstore.Options{URL: server.Addr}), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limiter.Close() })
	delivered := make(chan message, 1000)
	q := &queue{redis: redis.NewClient(&redis.Options{Addr: server.Addr}), limiter: limiter, deliver: func(m message) { delivered <- m }}
	t.Cleanup(func() { _ = q.redis.Close() })
	front := httptest.NewServer(q.handler())
	t.Cleanup(front.Close)

	statuses := make(map[int]int)
	var want []string
	for i := 0; statuses[http.StatusAccepted] < 3; i++ {
		text := fmt.Sprintf("message %d", i)
		want = append(want, text)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Sender", "ann")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		statuses[answer.StatusCode]++
	}
	if statuses[http.StatusOK]+statuses[http.StatusAccepted] != len(want) || statuses[http.StatusOK] < 5 {
		t.Errorf("statuses %v, want 200 for the first 5 and 202 for what the limit denies", statuses)
	}

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- q.consume(ctx) }()
	var got []string
	for range want {
		got = append(got, (<-delivered).text)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("delivered %q, want %q", got, want)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// the last may be delivered and not yet removed
	if n, err := q.redis.XPending(t.Context(), stream, group).Result(); err != nil || n.Count > 1 {
		t.Errorf("%+v still wait, %v", n, err)
	}
}
