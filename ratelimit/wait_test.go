package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// counting counts decisions.
type counting struct {
	*ratelimit.Limiter
	decisions atomic.Int64
}

func (c *counting) Decide(ctx context.Context, r *limits.Request) (limits.Decision, error) {
	c.decisions.Add(1)
	return c.Limiter.Decide(ctx, r)
}

func newLimiter(t *testing.T, rules ...ratelimit.Rule) *counting {
	t.Helper()
	l, err := ratelimit.New("api", rules...)
	if err != nil {
		t.Fatal(err)
	}
	return &counting{Limiter: l}
}

func (c *counting) close(t *testing.T) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

var (
	hundredASecond = ratelimit.Rule{Key: "k", Limit: ratelimit.Limit{Requests: 100, Window: time.Second, Algorithm: ratelimit.TokenBucket, Burst: 1}}
	tenASecond     = ratelimit.Rule{Key: "k", Limit: ratelimit.Limit{Requests: 10, Window: time.Second, Algorithm: ratelimit.TokenBucket, Burst: 1}}
)

// Workers that wait in a loop get the whole rate, each the same part of it, and with one decision for each request that
// passes.
func TestWaitIsFair(t *testing.T) {
	for _, workers := range []int{1, 2, 5, 20, 100} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, hundredASecond)
				defer l.close(t)
				const lasts = 20 * time.Second
				ctx, cancel := context.WithTimeout(t.Context(), lasts)
				defer cancel()
				var passed atomic.Int64
				var longest atomic.Int64
				var work sync.WaitGroup
				for range workers {
					work.Go(func() {
						for {
							begun := time.Now()
							_, err := limits.Wait(ctx, l, limits.NewRequest("api", "k", "v"))
							if err != nil {
								return
							}
							passed.Add(1)
							longest.Store(max(longest.Load(), int64(time.Since(begun))))
						}
					})
				}
				work.Wait()
				if n := passed.Load(); n < 1990 || n > 2001 {
					t.Errorf("%d requests passed, want 2000", n)
				}
				if fair := time.Duration(workers) * 10 * time.Millisecond; time.Duration(longest.Load()) > fair+time.Millisecond {
					t.Errorf("the longest wait is %s, want %s", time.Duration(longest.Load()), fair)
				}
				if d := l.decisions.Load(); d > passed.Load()+5 {
					t.Errorf("%d decisions for %d requests", d, passed.Load())
				}
			})
		})
	}
}

// Goroutines that wait together pass in the order in which they came.
func TestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, tenASecond)
		defer l.close(t)
		start := time.Now()
		var mu sync.Mutex
		var order []int
		var work sync.WaitGroup
		for i := range 50 {
			work.Go(func() {
				if _, err := limits.Wait(t.Context(), l, limits.NewRequest("api", "k", "v")); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			synctest.Wait() // this one is in line
		}
		work.Wait()
		if took := time.Since(start); took != 4900*time.Millisecond {
			t.Errorf("50 callers at 10 a second took %s", took)
		}
		for i, who := range order {
			if i != who {
				t.Fatalf("the order is %v", order)
			}
		}
		if d := l.decisions.Load(); d > 52 {
			t.Errorf("%d decisions for 50 callers", d)
		}
	})
}

// A goroutine that gives up costs nothing: not in the line, and not in a leaky bucket, which would keep its turn.
func TestDeadlineCostsNothing(t *testing.T) {
	for name, rule := range map[string]ratelimit.Rule{
		"token bucket": tenASecond,
		"leaky bucket": {Key: "k", Limit: ratelimit.Limit{Requests: 10, Window: time.Second, Algorithm: ratelimit.LeakyBucket, Burst: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, rule)
				defer l.close(t)
				if ok, err := l.Allow(t.Context(), "api", "k", "v"); !ok || err != nil {
					t.Fatal(ok, err)
				}
				for range 99 {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					if _, err := l.Wait(ctx, limits.NewRequest("api", "k", "v")); !errors.Is(err, limits.ErrTooLong) {
						t.Fatal(err)
					}
					if ok, err := l.Allow(ctx, "api", "k", "v"); ok || err != nil && !errors.Is(err, limits.ErrTooLong) {
						t.Fatal(ok, err)
					}
					cancel()
				}
				start := time.Now()
				if _, err := l.Wait(t.Context(), limits.NewRequest("api", "k", "v")); err != nil || time.Since(start) > 100*time.Millisecond {
					t.Errorf("%v after %s", err, time.Since(start))
				}
			})
		})
	}
}

// The first of a line gives up, and the others do not wait longer for it.
func TestTheFirstGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, ratelimit.Rule{Key: "k", Limit: ratelimit.PerMinute(1)})
		defer l.close(t)
		if ok, err := l.Allow(t.Context(), "api", "k", "v"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		for _, of := range []context.Context{ctx, t.Context(), ctx} {
			work.Go(func() {
				_, err := l.Wait(of, limits.NewRequest("api", "k", "v"))
				if (err == nil) != (of != ctx) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		cancel()
		start := time.Now()
		work.Wait()
		if time.Since(start) > time.Minute {
			t.Errorf("the second one waited %s", time.Since(start))
		}
	})
}

// Places of a Concurrency limit are taken by Acquire, in the order of the waiting goroutines, and given back. Calls
// that cannot give one back are errors.
func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, ratelimit.Rule{Key: "k", Limit: ratelimit.Limit{Requests: 2, Window: time.Minute, Algorithm: ratelimit.Concurrency}})
		defer l.close(t)
		request := limits.NewRequest("api", "k", "v")
		var held *limits.ConcurrencyError
		if _, err := l.Allow(t.Context(), "api", "k", "v"); !errors.As(err, &held) || !errors.Is(err, limits.ErrInvalid) {
			t.Errorf("Allow: %v", err)
		}
		if _, err := l.Wait(t.Context(), request); !errors.As(err, &held) {
			t.Errorf("Wait: %v", err)
		}
		start := time.Now()
		var most, now atomic.Int64
		var work sync.WaitGroup
		for range 10 {
			work.Go(func() {
				release, err := l.Acquire(t.Context(), "api", "k", "v")
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), now.Add(1)))
				<-time.After(time.Second)
				now.Add(-1)
				release()
				release()
			})
		}
		work.Wait()
		if most.Load() != 2 || time.Since(start) != 5*time.Second {
			t.Errorf("%d at the same time, and all took %s", most.Load(), time.Since(start))
		}
		first, err := l.Acquire(t.Context(), "api", "k", "v")
		if err != nil {
			t.Fatal(err)
		}
		second, err := l.Acquire(t.Context(), "api", "k", "v")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Acquire(ctx, "api", "k", "v"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third one: %v", err)
		}
		first()
		second()
	})
}

// A request that is missing is invalid in every call, and does not panic.
func TestNoRequest(t *testing.T) {
	l := newLimiter(t, tenASecond)
	defer l.close(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, decide := l.Limiter.Decide(ctx, nil)
	_, wait := l.Wait(ctx, nil)
	_, allow := limits.Allow(ctx, l.Limiter, nil)
	_, acquire := limits.Acquire(ctx, l.Limiter, nil)
	for name, err := range map[string]error{"Decide": decide, "Wait": wait, "Allow": allow, "Acquire": acquire} {
		if !errors.Is(err, limits.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A domain or a key that no rule has is an error, not an absence of limits.
func TestTypos(t *testing.T) {
	l := newLimiter(t, ratelimit.Rule{Key: "customer", Value: "gold", Limit: ratelimit.PerMinute(1)})
	defer l.close(t)
	for _, c := range []struct {
		domain string
		pairs  []string
		known  bool
	}{
		{"api", []string{"customer", "silver"}, true},
		{"api", []string{"custmer", "gold"}, false},
		{"apj", []string{"customer", "gold"}, false},
		{"api", nil, false},
		{"api", []string{"customer", "gold", "path", "/"}, false},
	} {
		ok, err := l.Allow(t.Context(), c.domain, c.pairs...)
		if ok != c.known || errors.Is(err, limits.ErrInvalid) == c.known {
			t.Errorf("Allow %s %v: %v %v", c.domain, c.pairs, ok, err)
		}
		_, err = l.Limiter.Decide(t.Context(), limits.NewRequest(c.domain, c.pairs...))
		if errors.Is(err, limits.ErrInvalid) == c.known {
			t.Errorf("Decide %s %v: %v", c.domain, c.pairs, err)
		}
		var keys []string
		for i := 0; i < len(c.pairs); i += 2 {
			keys = append(keys, c.pairs[i])
		}
		if err := l.CheckKeys(c.domain, keys...); (err == nil) != c.known {
			t.Errorf("CheckKeys %s %v: %v", c.domain, keys, err)
		}
	}
}
