package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

var quiet = slog.New(slog.DiscardHandler)

// stores runs a test with limiters over memory, a Redis and a cluster.
func stores(t *testing.T, text string, test func(t *testing.T, l *ratelimit.Limiter)) {
	t.Run("memory", func(t *testing.T) {
		test(t, open(t, ratelimit.Options{Dir: rulefiles.Dir(servicetest.RulesOf(t, text)), Logger: quiet}))
	})
	t.Run("redis", func(t *testing.T) {
		r := redistest.Start(t)
		test(t, open(t, ratelimit.Options{
			Dir: rulefiles.Dir(servicetest.RulesOf(t, text)), Store: redisstore.New(redisstore.Options{URL: r.Addr, Timeout: 10 * time.Second, KeyPrefix: "p:"}), Logger: quiet,
		}))
	})
	t.Run("cluster", func(t *testing.T) {
		var nodes []string
		for _, n := range redistest.StartCluster(t, redistest.Setup{}).Nodes {
			nodes = append(nodes, n.Addr)
		}
		test(t, open(t, ratelimit.Options{
			Dir: rulefiles.Dir(servicetest.RulesOf(t, text)), Store: redisstore.New(redisstore.Options{URL: strings.Join(nodes, ","), Type: "CLUSTER", Timeout: 10 * time.Second}), Logger: quiet,
		}))
	})
}

const yearly = `
domain: api
descriptors:
  - key: customer
    overridable: true
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: plan
    value: free
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 100}
    reservations: {ttl: 1m, max_ttl: 1h}
`

// A limit is exact, regardless of the number of goroutines.
func TestExact(t *testing.T) {
	stores(t, yearly, func(t *testing.T, l *ratelimit.Limiter) {
		var allowed atomic.Int64
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for range 50 {
					switch ok, err := l.Allow(t.Context(), "api", "customer", "a"); {
					case err != nil:
						t.Error(err)
					case ok:
						allowed.Add(1)
					}
				}
			})
		}
		all.Wait()
		if allowed.Load() != 1000 {
			t.Errorf("%d of 3200 requests passed a limit of 1000", allowed.Load())
		}
	})
}

// A decision has a status for each descriptor.
func TestDecide(t *testing.T) {
	stores(t, yearly, func(t *testing.T, l *ratelimit.Limiter) {
		r := limits.NewRequest("api", "customer", "b")
		r.Descriptors = append(r.Descriptors, ratelimit.Descriptor{
			Entries: []ratelimit.Entry{{Key: "plan", Value: "free"}}, Amount: &ratelimit.Amount{Hits: 2},
		}, ratelimit.Descriptor{Entries: []ratelimit.Entry{{Key: "unknown"}}})
		d, err := l.Decide(t.Context(), r)
		if err != nil || !d.Allowed || d.Source != limits.Counted || len(d.Statuses) != 3 {
			t.Fatalf("%+v %v", d, err)
		}
		if s := d.Statuses[0]; !s.Allowed || s.Rule != "api.customer" || s.Limit != 1000 || s.Remaining != 999 || s.ResetAfter <= 0 {
			t.Errorf("%+v", s)
		}
		if s := d.Statuses[1]; !s.Allowed || s.Rule != "api.plan_free" || s.Limit != 3 || s.Remaining != 1 {
			t.Errorf("%+v", s)
		}
		if s := d.Statuses[2]; s != (ratelimit.Status{Allowed: true}) {
			t.Errorf("%+v", s)
		}

		if d, err = l.Decide(t.Context(), r); err != nil || d.Allowed || d.Statuses[1].Allowed || !d.Statuses[0].Allowed {
			t.Fatalf("%+v %v", d, err)
		}
		if d.RetryAfter <= 0 || d.RetryAfter != d.Statuses[1].RetryAfter {
			t.Errorf("%+v", d)
		}
		r.Amount = ratelimit.Amount{Hits: 1001}
		if d, err = l.Decide(t.Context(), r); err != nil || d.Allowed || d.RetryAfter != ratelimit.Never {
			t.Errorf("%+v %v", d, err)
		}
		r = limits.NewRequest("api", "customer", "peeked")
		r.Amount.Peek = true
		for range 2 {
			if d, err = l.Decide(t.Context(), r); err != nil || !d.Allowed || d.Statuses[0].Remaining != 1000 {
				t.Errorf("%+v %v", d, err)
			}
		}
	})
}

// An invalid request is an error that names the mistake. So is a request that is larger than the service would accept.
func TestInvalid(t *testing.T) {
	long := strings.Repeat("x", 64<<10+1)
	many := limits.NewRequest("api", make([]string, 2*257)...)
	wide := &ratelimit.Request{Domain: "api", Descriptors: make([]ratelimit.Descriptor, 257)}
	l := open(t, ratelimit.Options{Dir: rulefiles.Dir(servicetest.RulesOf(t, yearly)), Logger: quiet})
	for _, c := range []struct {
		r    *ratelimit.Request
		want string
	}{
		{&ratelimit.Request{}, "domain must not be empty"},
		{&ratelimit.Request{Domain: "api"}, "descriptor list must not be empty"},
		{limits.NewRequest(long, "k", "v"), "the domain has more than 65536 bytes"},
		{limits.NewRequest("api", long, "v"), "a key or a value has more than 65536 bytes"},
		{limits.NewRequest("api", "k", long), "a key or a value has more than 65536 bytes"},
		{many, "257 entries in one descriptor, more than 256"},
		{wide, "257 descriptors, more than 256"},
	} {
		if _, err := l.Decide(t.Context(), c.r); !errors.Is(err, limits.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, not %s", err, c.want)
		}
	}
	for _, pairs := range [][]string{{long}, {"k", long}, make([]string, 2*257)} {
		if ok, err := l.Allow(t.Context(), "api", pairs...); ok || !errors.Is(err, limits.ErrInvalid) {
			t.Errorf("%d pairs: %v %v", len(pairs), ok, err)
		}
	}
	if ok, err := l.Allow(t.Context(), long); ok || !errors.Is(err, limits.ErrInvalid) {
		t.Errorf("a long domain: %v %v", ok, err)
	}
	if _, err := l.Reserve(t.Context(), wide, ratelimit.ReserveOptions{}); !errors.Is(err, limits.ErrInvalid) {
		t.Error(err)
	}
	if _, err := l.Reserve(t.Context(), limits.NewRequest("api", "customer", "a"), ratelimit.ReserveOptions{}); !errors.Is(err, limits.ErrInvalid) || !strings.Contains(err.Error(), "allows no reservations") {
		t.Error(err)
	}
}

// Reserved hits are in use until they are committed or cancelled.
func TestReserve(t *testing.T) {
	stores(t, yearly, func(t *testing.T, l *ratelimit.Limiter) {
		ctx := t.Context()
		ask := func(hits uint64) *ratelimit.Request {
			r := limits.NewRequest("api", "tokens", "a")
			r.Amount.Hits = hits
			return r
		}
		left := func() uint64 {
			t.Helper()
			r := ask(0)
			r.Amount.Peek = true
			d, err := l.Decide(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			return d.Statuses[0].Remaining
		}
		first, err := l.Reserve(ctx, ask(80), ratelimit.ReserveOptions{TTL: time.Minute})
		if err != nil || !first.Decision.Allowed || first.Reserved != 80 || time.Until(first.Expires) > 2*time.Minute || left() != 20 {
			t.Fatalf("%+v %v, %d left", first, err, left())
		}
		if r, err := l.Reserve(ctx, ask(30), ratelimit.ReserveOptions{}); err != nil || r.Decision.Allowed || !r.Expires.IsZero() || left() != 20 {
			t.Errorf("%+v %v, %d left", r, err, left())
		}
		part, err := l.Reserve(ctx, ask(30), ratelimit.ReserveOptions{MinHits: 10})
		if err != nil || !part.Decision.Allowed || part.Reserved != 20 || left() != 0 {
			t.Errorf("%+v %v, %d left", part, err, left())
		}
		before := first.Expires
		if err := first.Extend(ctx, 2*time.Minute); err != nil || !first.Expires.After(before) {
			t.Errorf("%v: %s, before %s", err, first.Expires, before)
		}
		if err := errors.Join(part.Cancel(ctx), first.Commit(ctx, ratelimit.Amount{Hits: 5})); err != nil || left() != 95 {
			t.Errorf("%v, %d left", err, left())
		}
		if err := first.Commit(ctx); !errors.Is(err, limits.ErrUnknownReservation) || left() != 95 {
			t.Errorf("%v, %d left", err, left())
		}
		all, err := l.Reserve(ctx, ask(10), ratelimit.ReserveOptions{})
		if err := errors.Join(err, all.Commit(ctx)); err != nil || left() != 85 {
			t.Errorf("%v, %d left", err, left())
		}
		if err := all.Commit(ctx, ratelimit.Amount{}, ratelimit.Amount{}); !errors.Is(err, limits.ErrInvalid) {
			t.Error(err)
		}
		free, err := l.Reserve(ctx, limits.NewRequest("api", "unknown", ""), ratelimit.ReserveOptions{})
		if err := errors.Join(err, free.Commit(ctx, ratelimit.Amount{Hits: 3}), free.Cancel(ctx)); err != nil || !free.Decision.Allowed || !free.Expires.IsZero() {
			t.Errorf("%+v %v", free, err)
		}
	})
}

// A wait ends when the limit has room.
func TestWait(t *testing.T) {
	stores(t, `
domain: api
descriptors:
  - key: job
    rate_limit: {unit: second, requests_per_unit: 20, algorithm: token_bucket, burst: 1}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 20, algorithm: leaky_bucket, burst: 5}
`, func(t *testing.T, l *ratelimit.Limiter) {
		for _, key := range []string{"job", "queue"} {
			start := time.Now()
			for range 3 {
				if d, err := l.Wait(t.Context(), limits.NewRequest("api", key, "x")); err != nil || !d.Allowed {
					t.Fatalf("%+v %v", d, err)
				}
			}
			if took := time.Since(start); took < 90*time.Millisecond {
				t.Errorf("%s: three requests, one every 50 ms, took %s", key, took)
			}
			start = time.Now()
			if ok, err := l.Allow(t.Context(), "api", "queue", "y"+key); !ok || err != nil {
				t.Error(ok, err)
			}
			if ok, err := l.Allow(t.Context(), "api", "queue", "y"+key); !ok || err != nil || time.Since(start) < 40*time.Millisecond {
				t.Error(ok, err, time.Since(start))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		for range 3 {
			if _, err := l.Wait(ctx, limits.NewRequest("api", "job", "z")); err != nil {
				if !errors.Is(err, limits.ErrTooLong) && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				return
			}
		}
		t.Error("three requests, one every 50 ms, passed in 20 ms")
	})
}

// A changed file is active soon. A bad one is not.
func TestReload(t *testing.T) {
	dir := servicetest.RulesOf(t, yearly)
	l := open(t, ratelimit.Options{Dir: rulefiles.Dir(dir), Logger: quiet})
	file := filepath.Join(dir, "rules0.yaml")
	limit := func(want uint64) func(context.Context) error {
		return func(ctx context.Context) error {
			d, err := l.Decide(ctx, limits.NewRequest("api", "customer", "a"))
			if err == nil && d.Statuses[0].Limit != want {
				err = fmt.Errorf("the limit is %d", d.Statuses[0].Limit)
			}
			return err
		}
	}
	redistest.Replace(t, file, []byte(strings.Replace(yearly, "1000", "2000", 1)))
	redistest.Eventually(t, "the new limit", limit(2000))
	redistest.Replace(t, file, []byte("domain: api\ndescriptors: 5\n"))
	redistest.Replace(t, filepath.Join(dir, "more.yaml"), []byte("domain: more\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: 7}\n"))
	redistest.Eventually(t, "the second file", func(ctx context.Context) error {
		d, err := l.Decide(ctx, limits.NewRequest("more", "k", ""))
		if err == nil && d.Statuses[0].Limit != 7 {
			err = errors.New("it has no limit")
		}
		return err
	})
	if err := limit(2000)(t.Context()); err != nil {
		t.Error(err)
	}
}

// The error of Open names the reason.
func TestOpenFails(t *testing.T) {
	empty, bad := t.TempDir(), servicetest.RulesOf(t, "domain: api\ndescriptors: 5\n")
	good := servicetest.RulesOf(t, yearly)
	before := runtime.NumGoroutine()
	for _, c := range []struct {
		o    ratelimit.Options
		want string
	}{
		{ratelimit.Options{}, "there are no rules: set Options.Domains"},
		{ratelimit.Options{Dir: rulefiles.Dir(filepath.Join(empty, "none"))}, "read rules from "},
		{ratelimit.Options{Dir: rulefiles.Dir(empty)}, "has no rule file"},
		{ratelimit.Options{Dir: rulefiles.Dir(bad)}, "rules0.yaml:2:"},
		{ratelimit.Options{Dir: rulefiles.Dir(good), OnFailure: 9}, "Options.OnFailure is 9, which package limits does not know"},
		{ratelimit.Options{Dir: rulefiles.Dir(good), Headers: 1 << 7}, "Options.Headers is 128"},
		{
			ratelimit.Options{Dir: rulefiles.Dir(good), Overrides: rulefiles.Overrides(filepath.Join(empty, "none")), Store: redisstore.New(redisstore.Options{URL: "localhost:1", Overrides: true})},
			"they have one source",
		},
		{ratelimit.Options{Dir: rulefiles.Dir(good), Overrides: rulefiles.Overrides(filepath.Join(empty, "none"))}, "read overrides"},
		{ratelimit.Options{Dir: rulefiles.Dir(good), Store: redisstore.New(redisstore.Options{})}, "redisstore: REDIS_URL is empty"},
		{ratelimit.Options{Dir: rulefiles.Dir(good), Store: redisstore.New(redisstore.Options{URL: "localhost:1", Type: "X"})}, "SINGLE, SENTINEL or CLUSTER"},
	} {
		c.o.Logger = quiet
		if l, err := ratelimit.Open(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "ratelimit: ") {
			t.Errorf("%+v: %v, %v", c.o, l, err)
		}
	}
	goroutines(t, before)
}

// goroutines waits until there are no more goroutines than before.
func goroutines(t *testing.T, before int) {
	t.Helper()
	redistest.Eventually(t, "the end of goroutines", func(context.Context) error {
		if n := runtime.NumGoroutine(); n > before {
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("%d goroutines, %d before:\n%s", n, before, stacks[:runtime.Stack(stacks, true)])
		}
		return nil
	})
}

// No goroutine is left after Close.
func TestClose(t *testing.T) {
	r := redistest.Start(t)
	dir := servicetest.RulesOf(t, yearly)
	before := runtime.NumGoroutine()
	for _, o := range []ratelimit.Options{
		{Dir: rulefiles.Dir(dir)},
		{Dir: rulefiles.Dir(dir), Store: redisstore.New(redisstore.Options{URL: r.Addr, Overrides: true})},
		{Dir: rulefiles.Dir(dir), Store: redisstore.New(redisstore.Options{URL: filepath.Join(dir, "nobody"), Timeout: time.Millisecond, Overrides: true})},
	} {
		o.Logger = quiet
		l, err := ratelimit.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = l.Allow(t.Context(), "api", "customer", "a")
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		goroutines(t, before)
	}
}

// Without Redis on_error decides.
func TestRedisIsAway(t *testing.T) {
	dir := servicetest.RulesOf(t, yearly)
	for _, c := range []struct {
		onFailure limits.OnFailure
		fails     bool
		allowed   int // number of 2000 requests that pass
	}{{limits.OnFailureDefault, true, 0}, {limits.OnFailureError, true, 0}, {limits.OnFailureAllow, false, 2000}, {limits.OnFailureDeny, false, 0}, {limits.OnFailureLocal, false, 1000}} {
		t.Run(c.onFailure.String(), func(t *testing.T) {
			l := open(t, ratelimit.Options{
				Dir: rulefiles.Dir(dir), OnFailure: c.onFailure, Store: redisstore.New(redisstore.Options{URL: filepath.Join(dir, "nobody"), Timeout: time.Second}), Logger: quiet,
			})
			allowed := 0
			for range 2000 {
				d, err := l.Decide(t.Context(), limits.NewRequest("api", "customer", "a"))
				if (err != nil) != c.fails || err == nil && d.Source != limits.OnError {
					t.Fatalf("%+v %v", d, err)
				}
				if d.Allowed {
					allowed++
				}
			}
			if allowed != c.allowed {
				t.Errorf("%d passed, not %d", allowed, c.allowed)
			}
		})
	}
}

// counts is an Observer.
type counts struct {
	allowed, denied, failed int
	last                    string
}

func (c *counts) Decided(_ context.Context, r *limits.Request, d *limits.Decision, err error, took time.Duration) {
	c.last = r.Descriptors[0].Entries[0].Value
	switch {
	case err != nil:
		c.failed++
	case d.Allowed && took > 0:
		c.allowed++
	default:
		c.denied++
	}
}

// An observer sees every decision.
func TestObserver(t *testing.T) {
	seen := new(counts)
	l := open(t, ratelimit.Options{Dir: rulefiles.Dir(servicetest.RulesOf(t, yearly)), Observer: seen, Logger: quiet})
	for range 5 {
		if _, err := l.Allow(t.Context(), "api", "plan", "free"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Allow(t.Context(), "", "plan", "last"); err == nil {
		t.Error("no error without a domain")
	}
	if *seen != (counts{3, 2, 1, "last"}) {
		t.Errorf("%+v", *seen)
	}
}

// Overrides of a file apply.
func TestOverrides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "overrides.yaml")
	if err := os.WriteFile(file, []byte("overrides:\n  - {domain: api, rule: api.customer, entries: customer=big, requests_per_unit: 5000}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, ratelimit.Options{Dir: rulefiles.Dir(servicetest.RulesOf(t, yearly)), Overrides: rulefiles.Overrides(file), Logger: quiet})
	redistest.Eventually(t, "the override", func(ctx context.Context) error {
		d, err := l.Decide(ctx, limits.NewRequest("api", "customer", "big"))
		if err == nil && d.Statuses[0].Limit != 5000 {
			err = fmt.Errorf("%+v", d)
		}
		return err
	})
}
