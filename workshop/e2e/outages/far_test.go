package outages

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// longest is how long a call in these tests may take on a busy machine.
const longest = 20 * time.Second

// takeOne takes one hit from a counter with a high limit.
func takeOne(ctx context.Context, s *redis.Store, key string) error {
	l := &descriptor.Limit{Requests: 1_000_000, Window: descriptor.Window{Unit: descriptor.Year}}
	r := &backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	return backend.Await(ctx, s, time.Now(), r)
}

// When round trips are long, a call does not wait for calls in flight.
func TestFarAwayNobodyWaitsForOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := startProxy(t, server)
	const calls, away = 8, 3 * time.Second // much longer than this machine stalls when it is busy
	client := redisconntest.Connect(t, redisconn.Options{URL: p.Addr, PoolSize: calls})
	redistest.OpenConnections(t, client, calls)
	store := redis.New(redis.Options{Client: client, Timeout: longest})
	// finds out which kind of Redis the address has, which needs a connection for a moment
	if err := store.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := takeOne(t.Context(), store, "k"); err != nil { // loads the script
		t.Fatal(err)
	}
	p.Delay(t, away)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			start := time.Now()
			err := takeOne(t.Context(), store, "k")
			if took := time.Since(start); err != nil || took > away*17/10 {
				t.Errorf("%v after %v, with a round trip of %v", err, took, away)
			}
		})
		<-tick.C
	}
	wg.Wait()
}

// When a round trip takes most of a call's timeout, new connections still succeed.
func TestFarAwayConnectionsAreMade(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]struct {
		setup redistest.Setup
		opts  redisconn.Options
	}{
		"plain":    {},
		"password": {redistest.Setup{Password: "s3cret"}, redisconn.Options{Auth: "s3cret"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, redistest.StartWith(t, o.setup))
			const away = 500 * time.Millisecond
			p.Delay(t, away)
			o.opts.URL = p.Addr
			client := redisconntest.Connect(t, o.opts)
			redistest.Eventually(t, "a call to work in little more than a round trip", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, away*17/10)
				defer cancel()
				return client.Do(ctx, "echo", "hello").Err()
			})
		})
	}
}

// A Redis that answers keeps the breaker closed, however slow it is, and even if no request waits for it any more.
func TestSlowIsNotSick(t *testing.T) {
	t.Parallel()
	p := startProxy(t, redistest.Start(t))
	metrics := prometheus.NewRegistry()
	client := redisconntest.Connect(t, redisconn.Options{URL: p.Addr, Breaker: &redisconn.BreakerOptions{Metrics: prom.With(metrics), Silence: longest}})
	store := redis.New(redis.Options{Client: client})
	defer func() { _ = store.Close() }()
	if err := takeOne(t.Context(), store, "k"); err != nil {
		t.Fatal(err)
	}
	p.Delay(t, 300*time.Millisecond)
	for range 15 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := takeOne(ctx, store, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller of 20 ms: %v", err)
		}
		cancel()
	}
	if err := takeOne(t.Context(), store, "k"); err != nil {
		t.Error(err)
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range families {
		if f.GetName() != "ratelimitd_redis_breaker_rejected_total" {
			continue
		}
		found = true
		for _, m := range f.GetMetric() {
			if n := m.GetCounter().GetValue(); n > 0 {
				t.Errorf("the breaker has rejected %v calls", n)
			}
		}
	}
	if !found {
		t.Error("the breaker has no metric of what it rejects")
	}
}
