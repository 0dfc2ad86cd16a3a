package redis_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// counters returns counters in many slots of a cluster, with limits per second and per year alternating.
func counters(n int) []backend.Counter {
	all := make([]backend.Counter, n)
	for i := range all {
		unit := descriptor.Year
		if i%2 == 0 {
			unit = descriptor.Second
		}
		all[i] = backend.Counter{Key: fmt.Appendf(nil, "k%d", i), Limit: &descriptor.Limit{Requests: 10, Window: descriptor.Window{Unit: unit}}}
	}
	return all
}

// used adds hits to each counter and returns the hits in use afterwards. For limits per second a new second may have
// started.
func used(t *testing.T, s backend.Store, all []backend.Counter, hits int64) []int64 {
	t.Helper()
	r := &backend.Request{Outcomes: make([]backend.Outcome, len(all))}
	for i, c := range all {
		r.Takes = append(r.Takes, backend.Take{Key: c.Key, Limit: c.Limit, Hits: hits, Member: i})
	}
	if err := backend.Await(t.Context(), s, time.Now(), r); err != nil {
		t.Fatal(err)
	}
	n := make([]int64, len(all))
	for i := range n {
		n[i] = r.Outcomes[i].Used
	}
	return n
}

func checkReset(t *testing.T, s backend.Store) {
	t.Helper()
	all := counters(60)
	kept := all[40:]
	for i, n := range used(t, s, all, 3) {
		if n != 3 {
			t.Fatalf("counter %d: %d used, want 3", i, n)
		}
	}
	if err := s.Reset(t.Context(), all[:40]); err != nil {
		t.Fatal(err)
	}
	for i, n := range used(t, s, all[:40], 0) {
		if n != 0 {
			t.Errorf("counter %d: %d used after the reset", i, n)
		}
	}
	for i, n := range used(t, s, kept, 0) {
		if n != 3 && (n != 0 || kept[i].Limit.Window.Unit != descriptor.Second) {
			t.Errorf("counter %d, which was not cleared: %d used", 40+i, n)
		}
	}
	if err := s.Reset(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestResetOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.Setup{})
	checkReset(t, redis.New(redis.Options{Client: dialCluster(t, cluster), Timeout: 10 * time.Second}))
}

func TestResetOnAPair(t *testing.T) {
	perSecond, other := redistest.Start(t), redistest.Start(t)
	checkReset(t, &redis.Pair{
		PerSecond: redis.New(redis.Options{Client: dial(t, perSecond), Timeout: patience}),
		Other:     redis.New(redis.Options{Client: dial(t, other), Timeout: patience}),
	})
}

// A reset deletes a foreign value under a counter's key too.
func TestResetOfAForeignValue(t *testing.T) {
	client := dial(t, redistest.Start(t))
	if err := client.RPush(t.Context(), "k1", "no", "state").Err(); err != nil {
		t.Fatal(err)
	}
	s := redis.New(redis.Options{Client: client, Timeout: patience})
	if err := s.Reset(t.Context(), counters(2)); err != nil {
		t.Fatal(err)
	}
	if n := client.Exists(t.Context(), "k1").Val(); n != 0 {
		t.Error("it is still there")
	}
}

func TestResetWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: 200 * time.Millisecond})
	if err := s.Reset(t.Context(), counters(2)); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	began := time.Now()
	if err := s.Reset(t.Context(), counters(2)); !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want unavailable", err)
	}
	if took := time.Since(began); took > longest { // Redis hangs until Continue
		t.Errorf("it took %s", took)
	}
	server.Continue(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Reset(gone, counters(2)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v for a caller that is gone", err)
	}
}
