package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// started holds the requests of a batch that a store has not settled immediately.
type started struct {
	batch    backend.Batch
	requests []*backend.Request
	answers  chan error
}

func newStarted() *started { return &started{answers: make(chan error, 1000)} }

// start starts requests for one hit of each of n counters, and returns how many were settled immediately.
func (b *started) start(t *testing.T, s backend.Starter, n int, l *descriptor.Limit) (settled int) {
	t.Helper()
	for i := range n {
		r := take(fmt.Sprint("k", i), l, 1)
		at, err := s.Start(t.Context(), time.Now(), &b.batch, r, func(err error) { b.answers <- err })
		if err != nil {
			t.Fatal(err)
		}
		if at {
			settled++
			continue
		}
		b.requests = append(b.requests, r)
	}
	return settled
}

// send sends the batch, and waits for the answers.
func (b *started) send(t *testing.T) {
	t.Helper()
	b.batch.Send()
	for range b.requests {
		if err := <-b.answers; err != nil {
			t.Error(err)
		}
	}
	b.requests = nil
}

// The requests of a batch wait until it is sent, and then share one round trip. Without a batch, each is sent
// immediately.
func TestBatchIsOneRoundTrip(t *testing.T) {
	s, server := openStore(t, redis.Options{})
	l := limit(1000, descriptor.Year)
	b := newStarted()
	b.start(t, s, 40, l)
	b.send(t) // Redis has the script now
	for round := range 3 {
		before := server.Calls(t, "evalsha")
		b.start(t, s, 40, l)
		requests := b.requests
		if n := server.Calls(t, "evalsha"); n != before || s.Waiting() > 0 {
			t.Fatalf("round %d: %d calls before the batch is sent, %d requests in the queue", round, n-before, s.Waiting())
		}
		b.send(t)
		if n := server.Calls(t, "evalsha"); n != before+1 {
			t.Errorf("round %d: %d calls for a batch, want 1", round, n-before)
		}
		for i, r := range requests {
			if o := r.Outcomes[0]; !o.Allowed || o.Used != int64(round+2) {
				t.Fatalf("round %d, request %d: %+v", round, i, o)
			}
		}
	}
}

// A denial that the denial cache knows is answered while the rest of its batch waits.
func TestBatchDoesNotHoldUpWhatTheCacheKnows(t *testing.T) {
	s, _ := openStore(t, redis.Options{})
	c := overlimit.New(overlimit.Options{Store: s})
	one := limit(1, descriptor.Year)
	for range 2 {
		if err := backend.Await(t.Context(), c, time.Now(), take("k0", one, 1)); err != nil {
			t.Fatal(err)
		}
	}
	b := newStarted()
	if n := b.start(t, c, 5, one); n != 1 || len(b.requests) != 4 {
		t.Errorf("%d requests settled at once, %d wait; want 1 and 4", n, len(b.requests))
	}
	b.send(t)
}

// A batch that is sent after the store is closed is still answered.
func TestBatchOfAClosedStore(t *testing.T) {
	s, _ := openStore(t, redis.Options{})
	b := newStarted()
	b.start(t, s, 20, limit(1000, descriptor.Year))
	requests := b.requests
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.send(t)
	for i, r := range requests {
		if !r.Outcomes[0].Allowed {
			t.Errorf("request %d: %+v", i, r.Outcomes[0])
		}
	}
}

// Each Redis of a pair gets its part of a batch in one call.
func TestBatchForTwoStores(t *testing.T) {
	second, secondServer := openStore(t, redis.Options{})
	other, otherServer := openStore(t, redis.Options{})
	pair := &redis.Pair{PerSecond: second, Other: other}
	b := newStarted()
	for range 2 { // the first time, each Redis gets the script
		b.start(t, pair, 30, limit(1000, descriptor.Second))
		b.start(t, pair, 30, limit(1000, descriptor.Year))
		before := [2]int{secondServer.Calls(t, "evalsha"), otherServer.Calls(t, "evalsha")}
		b.send(t)
		if after := [2]int{secondServer.Calls(t, "evalsha"), otherServer.Calls(t, "evalsha")}; after != [2]int{before[0] + 1, before[1] + 1} {
			t.Errorf("calls %v, then %v; want one more each", before, after)
		}
	}
}

// The logs of a batch may be too large for one answer of Redis. Its requests then have an answer each.
func TestLargeLogsDoNotShareAnAnswer(t *testing.T) {
	s, _ := openStore(t, redis.Options{})
	l := limit(60_000, descriptor.Year)
	l.Algorithm = descriptor.SlidingLog
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	const n = 80 // 240 KB each
	for i := range n {
		r := take(fmt.Sprint("k", i), l, 59_000)
		if err := backend.Await(t.Context(), s, time.Now(), r); err != nil {
			t.Fatal(err)
		}
	}
	b := newStarted()
	b.start(t, s, n, l)
	requests := b.requests
	b.send(t)
	for i, r := range requests {
		if o := r.Outcomes[0]; !o.Allowed || o.Used != 59_001 {
			t.Fatalf("request %d: %+v", i, o)
		}
	}
}
