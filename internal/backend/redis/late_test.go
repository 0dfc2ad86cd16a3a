package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// value returns the sum of a metric over its labels.
func value(t *testing.T, metrics prometheus.Gatherer, name string) (sum float64) {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			if f.GetType() == dto.MetricType_GAUGE {
				sum += m.GetGauge().GetValue()
			} else {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// Redis stalls. Callers leave at their deadlines; the other callers of the same flush are answered when Redis
// continues. The connections stay open, and the late answers show the breaker that Redis is well. Nothing is counted
// twice.
func TestStall(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*redis.Options){
		"shared trips":    func(*redis.Options) {},
		"callers' clocks": func(o *redis.Options) { o.CallerClock = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			conns, metrics := new(redisconn.Connections), prometheus.NewRegistry()
			client := connect(t, redisconn.Options{
				URL: server.Addr, Connections: conns,
				Breaker: &redisconn.BreakerOptions{Metrics: prom.With(metrics), Silence: longest}, // the machine may be busy
			})
			opts := redis.Options{Client: client}
			set(&opts)
			store := redis.New(opts)
			defer func() { _ = store.Close() }()
			l := limit(1_000_000, descriptor.Year)
			const callers = 20
			count := func(within time.Duration) (errs []error) {
				var wg sync.WaitGroup
				var mu sync.Mutex
				for range callers {
					wg.Go(func() {
						ctx := t.Context()
						if within > 0 {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeout(ctx, within)
							defer cancel()
						}
						r := take("k", l, 1)
						if err := backend.Await(ctx, store, time.Now(), r); err != nil {
							if !r.Outcomes[0].Failed {
								t.Errorf("%v, %+v", err, r.Outcomes[0])
							}
							mu.Lock()
							errs = append(errs, err)
							mu.Unlock()
						}
					})
				}
				wg.Wait()
				return errs
			}
			if errs := count(0); len(errs) > 0 {
				t.Fatal(errs)
			}
			made := conns.Opened()

			server.Pause(t)
			patient := make(chan []error, 2)
			go func() { patient <- count(0) }()
			go func() { patient <- count(longest) }()
			errs := count(20 * time.Millisecond)
			for _, err := range errs {
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrUnavailable) {
					t.Errorf("a caller of 20 ms: %v", err)
				}
			}
			if len(errs) != callers {
				t.Errorf("%d of %d callers of 20 ms left", len(errs), callers)
			}
			server.Continue(t)
			for range 2 {
				if errs := <-patient; len(errs) > 0 {
					t.Errorf("%d of %d patient callers failed: %v", len(errs), callers, errs[0])
				}
			}
			if errs := count(0); len(errs) > 0 {
				t.Errorf("after the stall %d of %d callers failed: %v", len(errs), callers, errs[0])
			}
			if conns.Closed() > 0 {
				t.Errorf("%d of %d connections were closed", conns.Closed(), made)
			}
			if open, rejected := value(t, metrics, "ratelimitd_redis_breaker_open"), value(t, metrics, "ratelimitd_redis_breaker_rejected_total"); open+rejected > 0 {
				t.Errorf("the breaker is open: %v, and has rejected %v calls", open, rejected)
			}
			if used := mustTake(t, store, "k", l, 0).Used; used < 4*callers || used > 5*callers {
				t.Errorf("%d used, want %d, and those of callers that left at most once each", used, 4*callers)
			}
		})
	}
}

// A caller leaves a moment before its deadline, so that it answers its client in time.
func TestCallerLeavesBeforeItsDeadline(t *testing.T) {
	t.Parallel()
	store, server := openStore(t, redis.Options{})
	l := limit(10, descriptor.Year)
	mustTake(t, store, "k", l, 1)
	server.Pause(t)
	const within = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	began := time.Now()
	err := backend.Await(ctx, store, time.Now(), take("k", l, 1))
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took < within/2 {
		t.Errorf("%v after %v, want the deadline of %v", err, took, within)
	}
	if ctx.Err() != nil {
		t.Log("this machine is too busy to see that the caller has left before its deadline")
	}
}

// Redis hangs, and callers come and leave again. A request whose caller has left is not kept: the waiting requests are
// no more than the waiting callers.
func TestRequestsOfCallersThatLeftAreNotKept(t *testing.T) {
	t.Parallel()
	store, server := openStore(t, redis.Options{Timeout: 10 * longest})
	l := limit(1_000_000, descriptor.Year)
	mustTake(t, store, "k", l, 1)
	server.Pause(t)
	const rounds, callers = 20, 100
	for range rounds {
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				defer cancel()
				if err := backend.Await(ctx, store, time.Now(), take("k", l, 1)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a Redis that hangs: %v", err)
				}
			})
		}
		wg.Wait()
	}
	if n := store.Waiting(); n > callers {
		t.Errorf("%d requests of %d callers that have left are kept", n, rounds*callers)
	}
	server.Continue(t)
	mustTake(t, store, "k", l, 1)
}

// Redis hangs. Calls without a deadline wait until it has been silent for a while, then all fail together. While the
// breaker is open, calls fail immediately.
func TestSilence(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	metrics := prometheus.NewRegistry()
	const silence = 300 * time.Millisecond
	client := connect(t, redisconn.Options{URL: server.Addr, PoolSize: 3, Breaker: &redisconn.BreakerOptions{Metrics: prom.With(metrics), Silence: silence, OpenFor: longest}})
	store := redis.New(redis.Options{Client: client, Timeout: 10 * longest})
	defer func() { _ = store.Close() }()
	l := limit(1000, descriptor.Year)
	mustTake(t, store, "k", l, 1)
	server.Pause(t)
	began := time.Now()
	var wg sync.WaitGroup
	for range 50 { // more requests than connections
		wg.Go(func() {
			if err := backend.Await(t.Context(), store, time.Now(), take("k", l, 1)); !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a Redis that hangs: %v", err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took < silence || took > longest {
		t.Errorf("calls failed after %v, want %v", took, silence)
	}
	before := value(t, metrics, "ratelimitd_redis_breaker_rejected_total")
	if err := backend.Await(t.Context(), store, time.Now(), take("k", l, 1)); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("after that: %v", err)
	}
	if open, rejected := value(t, metrics, "ratelimitd_redis_breaker_open"), value(t, metrics, "ratelimitd_redis_breaker_rejected_total"); open != 1 || rejected != before+1 {
		t.Errorf("the breaker is open: %v, and has rejected %v calls, before %v", open, rejected, before)
	}
}

// A refused connection opens the breaker immediately.
func TestRefusedConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	metrics := prometheus.NewRegistry()
	client := connect(t, redisconn.Options{URL: server.Addr, Breaker: &redisconn.BreakerOptions{Metrics: prom.With(metrics), OpenFor: longest}})
	store := redis.New(redis.Options{Client: client, Sharded: true}) // otherwise the probe would be the first call
	defer func() { _ = store.Close() }()
	server.Kill(t)
	for range 2 {
		if err := backend.Await(t.Context(), store, time.Now(), take("k", limit(10, descriptor.Year), 1)); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("without Redis: %v", err)
		}
	}
	if rejected := value(t, metrics, "ratelimitd_redis_breaker_rejected_total"); rejected != 1 {
		t.Errorf("the breaker has rejected %v of 2 calls, want the second one", rejected)
	}
}

// A cluster node that hangs delays only its own callers, even if there are fewer connections than flushes waiting for
// it.
func TestNodesHaveQueuesOfTheirOwn(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.Setup{})
	client := connect(t, redisconn.Options{Type: "CLUSTER", URL: strings.Join(c.Addrs(), ","), PoolSize: 2})
	store := redis.New(redis.Options{Client: client, Timeout: longest})
	c.NoFailover()
	var hung, well []string
	for i := 0; len(hung) < 40 || len(well) < 40; i++ {
		key := fmt.Sprint("k", i)
		if err := takeOne(t.Context(), store, key); err != nil {
			t.Fatal(err)
		}
		if c.Slot(t, key) < 16384/3 {
			hung = append(hung, key)
		} else {
			well = append(well, key)
		}
	}
	c.Nodes[0].Pause(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, key := range hung[:40] {
		wg.Go(func() {
			if err := takeOne(ctx, store, key); err == nil {
				t.Error("a node that hangs answered")
			}
		})
	}
	for _, key := range well[:40] { // each finds flushes in flight
		began := time.Now()
		if err := takeOne(t.Context(), store, key); err != nil || time.Since(began) > longest/2 {
			t.Errorf("a node that is well: %v after %v", err, time.Since(began))
		}
	}
	cancel()
	wg.Wait()
	c.Nodes[0].Continue(t)
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// Calls that fail while the breaker stays closed are logged in one line, with their number.
func TestFailedCallsAreLogged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var text bytes.Buffer
	client := connect(t, redisconn.Options{URL: server.Addr, Breaker: &redisconn.BreakerOptions{Silence: 2 * longest}})
	var mu sync.Mutex
	store := redis.New(redis.Options{Client: client, Logger: slog.New(slog.NewTextHandler(locked{&mu, &text}, nil))})
	l := limit(10, descriptor.Year)
	mustTake(t, store, "k", l, 1)
	server.Pause(t)
	for range 7 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := backend.Await(ctx, store, time.Now(), take("k", l, 1)); err == nil {
			t.Error("a Redis that hangs answered")
		}
		cancel()
	}
	server.Continue(t)
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if lines := strings.Count(text.String(), "level=WARN"); lines != 1 || !strings.Contains(text.String(), "calls=7") || !strings.Contains(text.String(), "deadline exceeded") {
		t.Errorf("want one line with 7 calls and their cause:\n%s", &text)
	}
}

// locked makes a writer safe for concurrent use.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
