package overlimit

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
)

func reset(t *testing.T, c *Cache, key string, l *descriptor.Limit) {
	t.Helper()
	if err := c.Reset(context.Background(), []backend.Counter{{Key: []byte(key), Limit: l}}); err != nil {
		t.Fatal(err)
	}
}

func TestResetForgetsDenials(t *testing.T) {
	c := New(Options{Store: memory.New(memory.Options{})})
	l := fixed(1)
	for _, key := range []string{"k", "other"} {
		settle(t, c, noon, false, take(key, l, 1))
		settle(t, c, noon, false, take(key, l, 1))
	}
	if o := settle(t, c, noon, false, take("k", l, 1))[0]; !o.Cached {
		t.Fatalf("before the reset: %+v, want a remembered denial", o)
	}
	reset(t, c, "k", l)
	if o := settle(t, c, noon, false, take("k", l, 1))[0]; !o.Allowed || o.Before != 0 {
		t.Errorf("after the reset: %+v", o)
	}
	if o := settle(t, c, noon, false, take("other", l, 1))[0]; !o.Cached {
		t.Errorf("another counter: %+v, want its denial remembered", o)
	}
}

// slow is a store that runs a function before it clears counters.
type slow struct {
	*memory.Store
	before func()
}

func (s *slow) Reset(ctx context.Context, counters []backend.Counter) error {
	s.before()
	return s.Store.Reset(ctx, counters)
}

// A denial that is cached while the counter is being cleared must be forgotten, too.
func TestDenialWhileAResetIsOnItsWay(t *testing.T) {
	store := &slow{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store})
	l := fixed(1)
	settle(t, c, noon, false, take("k", l, 1))
	store.before = func() {
		for range 2 {
			settle(t, c, noon, false, take("k", l, 1))
		}
		if c.Len() != 1 {
			t.Errorf("%d denials remembered before the reset, want 1", c.Len())
		}
	}
	reset(t, c, "k", l)
	if o := settle(t, c, noon, false, take("k", l, 1))[0]; !o.Allowed {
		t.Errorf("after the reset: %+v", o)
	}
}

// A denial that was in flight while the counter was cleared must not be cached: it is older than the reset.
func TestResetWhileADenialIsOnItsWay(t *testing.T) {
	store := &asking{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store})
	l := fixed(1)
	settle(t, c, noon, false, take("k", l, 1))
	store.during = func() { reset(t, c, "k", l) }
	if o := settle(t, c, noon, false, take("k", l, 1))[0]; o.Allowed {
		t.Fatalf("before the reset: %+v", o)
	}
	if o := settle(t, c, noon, false, take("k", l, 1))[0]; !o.Allowed {
		t.Errorf("after the reset: %+v", o)
	}
}

// Denials that another replica has reset must be removed, even a denial whose answer is on its way.
func TestForgetWhileADenialIsOnItsWay(t *testing.T) {
	for name, forget := range map[string]func(*Cache){
		"one": func(c *Cache) { c.Forget([]byte("k")) },
		"all": (*Cache).ForgetAll,
	} {
		store := &asking{Store: memory.New(memory.Options{})}
		c := New(Options{Store: store})
		l := fixed(1)
		settle(t, c, noon, false, take("k", l, 1))
		store.during = func() { forget(c) }
		if o := settle(t, c, noon, false, take("k", l, 1))[0]; o.Allowed || c.Len() != 0 {
			t.Errorf("%s: %+v; %d denials are remembered, want none", name, o, c.Len())
		}
		if o := settle(t, c, noon, false, take("k", l, 1))[0]; o.Cached || c.Len() != 1 {
			t.Errorf("%s: %+v; %d denials are remembered, want 1", name, o, c.Len())
		}
		forget(c)
		if o := settle(t, c, noon, false, take("k", l, 1))[0]; o.Cached {
			t.Errorf("%s: %+v, want the store's answer", name, o)
		}
	}
}

// failing is a store whose takes fail.
type failing struct{ *memory.Store }

// Start implements backend.Store.
func (s failing) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, s.take(ctx, now, r)
}

func (failing) take(_ context.Context, _ time.Time, r *backend.Request) error {
	backend.Fail(r.Outcomes)
	return backend.ErrUnavailable
}

// Other replicas learn of every refund that can let a denied request pass: a request of several hits, or one of another
// class, is denied long before the counter is exhausted.
func TestRefundsReachOtherReplicas(t *testing.T) {
	var refunded []string
	record := func(key []byte) { refunded = append(refunded, string(key)) }
	check := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(refunded, want) {
			t.Errorf("%s: %q, want %q", what, refunded, want)
		}
		refunded = nil
	}
	store := memory.New(memory.Options{})
	c := New(Options{Store: store, Refunded: record})
	l := fixed(3)
	settle(t, c, noon, false, take("k", l, -1))
	check("nothing was used")
	settle(t, c, noon, false, take("k", l, 1))
	settle(t, c, noon, false, take("k", l, -1))
	check("something was left", "k")
	settle(t, c, noon, false, take("k", l, 3))
	settle(t, c, noon, false, take("k", l, -1))
	check("nothing was left", "k")
	settle(t, c, noon, false, take("k", l, 2)) // denied
	settle(t, c, noon, false, take("k", l, -1))
	check("a denial was remembered", "k")

	c = New(Options{Store: failing{store}, Refunded: record})
	r := backend.Request{Takes: []backend.Take{take("k", l, -1)}, Outcomes: make([]backend.Outcome, 1)}
	if err := backend.Await(context.Background(), c, noon, &r); err == nil {
		t.Error("the store did not fail")
	}
	check("the refund failed and may have been carried out", "k")
}

// Two replicas share the counters, each with a cache. After a refund through one, the other denies no request that the
// counter would allow, whether the denied request had several hits, or was of a class that has less than the whole
// limit.
func TestRefundReachesDenialsOfCountersThatAreNotExhausted(t *testing.T) {
	for name, test := range map[string]struct {
		limit  string
		denied int64
	}{
		"several hits": {"10/1d", 5},
		"a bucket":     {"10/1d,token,burst=10", 5},
		"classes":      {"10/1d,class=0,guaranteed=70", 1}, // three hits are kept for the other class at noon
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New(memory.Options{})
			b := New(Options{Store: store})
			a := New(Options{Store: store, Refunded: b.Forget})
			l := backendtest.Limit(test.limit)
			settle(t, a, noon, false, take("k", l, 7))
			if o := settle(t, b, noon, false, take("k", l, test.denied))[0]; o.Allowed {
				t.Fatalf("not denied: %+v", o)
			}
			settle(t, a, noon, false, take("k", l, -6))
			if o := settle(t, b, noon, false, take("k", l, test.denied))[0]; !o.Allowed {
				t.Errorf("after the refund: %+v", o)
			}
		})
	}
}

// A plan with reservations gives hits back by a commit: the denial of another plan of the same counter ends.
func TestCommitEndsTheDenialOfAnotherPlan(t *testing.T) {
	store := memory.New(memory.Options{})
	c := New(Options{Store: store})
	free, pro := fixed(10), fixed(10)
	pro.Reservations = &descriptor.Reservations{TTL: time.Minute, MaxTTL: time.Hour, MaxShare: descriptor.MaxShareWhole, MaxOutstanding: 1}
	with := func(op backend.ReservationOp, hits int64) backend.Take {
		t := take("k", pro, hits)
		t.Reservation = &backend.Reservation{ID: backend.ReservationID{1}, Op: op, Final: op == backend.OpCommit}
		return t
	}
	settle(t, c, noon, false, with(backend.OpReserve, 10))
	settle(t, c, noon, false, take("k", free, 1))
	settle(t, c, noon, false, with(backend.OpCommit, 2))
	if o := settle(t, c, noon, false, take("k", free, 1))[0]; !o.Allowed {
		t.Errorf("after the commit of 2 of 10: %+v", o)
	}
}
