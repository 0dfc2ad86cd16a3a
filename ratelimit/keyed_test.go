package ratelimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
)

const year = 365 * 24 * time.Hour // no test lasts until the next window

// A Keyed limits each ID on its own, with every algorithm, in memory and in Redis.
func TestKeyed(t *testing.T) {
	r := redistest.Start(t)
	for name, o := range map[string]ratelimit.Options{
		"memory": {Logger: quiet},
		"redis":  {Logger: quiet, Store: redisstore.New(redisstore.Options{URL: r.Addr, Timeout: 10 * time.Second})},
	} {
		for _, limit := range []ratelimit.Limit{
			ratelimit.Per(3, year),
			ratelimit.Bucket(3, year, 3),
			{Requests: 3, Window: year, Algorithm: ratelimit.SlidingWindow},
			{Requests: 3, Window: year, Algorithm: ratelimit.SlidingLog},
		} {
			t.Run(name+"/"+limit.Algorithm.String(), func(t *testing.T) {
				k, err := ratelimit.OpenKeyed(t.Context(), limit, o)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := k.Close(); err != nil {
						t.Error(err)
					}
				}()
				ctx := t.Context()
				allow := func(id string, n uint64, want bool) {
					t.Helper()
					if ok, err := k.AllowN(ctx, id, n); ok != want || err != nil {
						t.Errorf("%d of %s: %v %v", n, id, ok, err)
					}
				}
				allow("ann", 2, true)
				allow("ann", 2, false)
				allow("ann", 1, true)
				allow("bob", 3, true)
				if ok, err := k.Allow(ctx, "ann"); ok || err != nil {
					t.Errorf("ann again: %v %v", ok, err)
				}
				if ok, err := k.AllowWith(ctx, "ann", 1, with(limit, 10)); !ok || err != nil {
					t.Errorf("ann with a limit of 10: %v %v", ok, err)
				}
				if err := k.SetLimit("ann", with(limit, 5)); err != nil {
					t.Fatal(err)
				}
				if s, err := k.Left(ctx, "ann"); s.Limit != 5 || s.Remaining > 1 || err != nil {
					t.Errorf("ann has %+v %v", s, err)
				}
				if err := k.Reset(ctx, "ann"); err != nil {
					t.Fatal(err)
				}
				allow("ann", 5, true)
				if err := k.Refund(ctx, "ann", 2); err != nil {
					t.Fatal(err)
				}
				allow("ann", 2, true)
				allow("ann", 1, false)
				if err := k.SetLimit("ann", ratelimit.Limit{}); err != nil {
					t.Fatal(err)
				}
				if s, err := k.Left(ctx, "ann"); s.Limit != 3 || s.Remaining != 0 || err != nil {
					t.Errorf("ann has %+v %v", s, err)
				}
				held, err := k.ReserveN(ctx, "eve", 3, ratelimit.ReserveOptions{})
				if err != nil || !held.Decision.Allowed {
					t.Fatalf("%+v %v", held, err)
				}
				allow("eve", 1, false)
				if err := held.Commit(ctx, ratelimit.Amount{Hits: 1}); err != nil {
					t.Fatal(err)
				}
				allow("eve", 2, true)
				before, err := k.Left(ctx, "ann")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := k.AllowN(ctx, "ann", 0); err != nil { // denied while more is used than the limit allows
					t.Fatal(err)
				}
				if err := k.Refund(ctx, "ann", 0); err != nil {
					t.Fatal(err)
				}
				if after, err := k.Left(ctx, "ann"); after.Remaining != before.Remaining || err != nil {
					t.Errorf("nothing changed %+v to %+v: %v", before, after, err)
				}
				if err := k.SetLimit("ann", ratelimit.PerHour(3)); err == nil || !strings.Contains(err.Error(), "window") {
					t.Errorf("a limit with another window: %v", err)
				}
			})
		}
	}
}

func with(l ratelimit.Limit, n uint64) ratelimit.Limit {
	l.Requests = n
	if l.Burst > 0 {
		l.Burst = n
	}
	return l
}

func TestKeyedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, err := ratelimit.NewKeyed(ratelimit.Bucket(10, time.Second, 10))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = k.Close() }()
		start := time.Now()
		for range 100 {
			if err := k.Wait(t.Context(), "ann"); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 9*time.Second {
			t.Errorf("100 requests took %s, want 9 s", took)
		}
		if err := k.WaitN(t.Context(), "ann", 11); !errors.Is(err, ratelimit.ErrNever) {
			t.Error(err)
		}
	})
}

// Requests under a leaky bucket pass evenly, and nothing can be reserved.
func TestKeyedLeakyBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, err := ratelimit.NewKeyed(ratelimit.Limit{Requests: 10, Window: time.Second, Algorithm: ratelimit.LeakyBucket})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = k.Close() }()
		start := time.Now()
		for range 11 {
			if ok, err := k.Allow(t.Context(), "ann"); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("11 requests took %s, want 1 s", took)
		}
		if _, err := k.Decide(t.Context(), nil); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Error("a decision without a request:", err)
		}
		if _, err := k.ReserveN(t.Context(), "ann", 1, ratelimit.ReserveOptions{}); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Error(err)
		}
	})
}

func TestKeyedAtOnce(t *testing.T) {
	k, err := ratelimit.NewKeyed(ratelimit.AtOnce(1, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	release, err := k.Acquire(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Acquire(ctx, "ann"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	release()
	again, err := k.Acquire(t.Context(), "ann")
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// After Close every call is an error, in memory too.
func TestClosed(t *testing.T) {
	k, err := ratelimit.NewKeyed(ratelimit.Per(3, year))
	if err != nil {
		t.Fatal(err)
	}
	held, err := k.ReserveN(t.Context(), "ann", 1, ratelimit.ReserveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	_, allow := k.Allow(t.Context(), "ann")
	_, left := k.Left(t.Context(), "ann")
	_, reserve := k.ReserveN(t.Context(), "ann", 1, ratelimit.ReserveOptions{})
	for name, err := range map[string]error{
		"Allow": allow, "Left": left, "Reserve": reserve, "Wait": k.Wait(t.Context(), "ann"), "Reset": k.Reset(t.Context(), "ann"),
		"Refund": k.Refund(t.Context(), "ann", 1), "Commit": held.Commit(t.Context()),
	} {
		if !errors.Is(err, ratelimit.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Rules in code can be replaced. Counters of a rule that stays are kept.
func TestSetRules(t *testing.T) {
	l := open(t, ratelimit.Options{Domains: []ratelimit.Domain{{Name: "api", Rules: []ratelimit.Rule{{Key: "k", Limit: ratelimit.Per(2, year)}}}}, Logger: quiet})
	allow := func(key string, want bool) {
		t.Helper()
		if ok, err := l.Allow(t.Context(), "api", key, "v"); ok != want || err != nil {
			t.Errorf("%s: %v %v", key, ok, err)
		}
	}
	allow("k", true)
	if err := l.SetRules(ratelimit.Domain{Name: "api", Rules: []ratelimit.Rule{{Key: "k", Limit: ratelimit.Per(1, year)}, {Key: "new", Limit: ratelimit.Per(1, year)}}}); err != nil {
		t.Fatal(err)
	}
	allow("k", false)
	allow("new", true)
	if err := l.SetRules(ratelimit.Domain{Name: "api", Rules: []ratelimit.Rule{{Key: "k", Limit: ratelimit.Per(1, 0)}}}); err == nil {
		t.Error("a rule without a window is accepted")
	}
	allow("new", false)
}
