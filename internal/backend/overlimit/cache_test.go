package overlimit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// asking is a store that counts the takes it receives, and can run a function during a call.
type asking struct {
	*memory.Store
	takes  int
	during func()
}

// Start implements backend.Store.
func (a *asking) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, a.take(ctx, now, r)
}

func (a *asking) take(ctx context.Context, now time.Time, r *backend.Request) error {
	a.takes += len(r.Takes)
	err := backend.Await(ctx, a.Store, now, r)
	if f := a.during; f != nil {
		a.during = nil
		f()
	}
	return err
}

func fixed(requests uint64) *descriptor.Limit {
	return &descriptor.Limit{Requests: requests, Window: descriptor.Window{Unit: descriptor.Minute}}
}

func settle(t *testing.T, c *Cache, now time.Time, together bool, takes ...backend.Take) []backend.Outcome {
	t.Helper()
	r := backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes)), Together: together}
	if err := backend.Await(context.Background(), c, now, &r); err != nil {
		t.Fatal(err)
	}
	return r.Outcomes
}

func take(key string, l *descriptor.Limit, hits int64) backend.Take {
	return backend.Take{Key: []byte(key), Limit: l, Hits: hits}
}

func TestDenialIsRememberedForItsHitsAndUntilItsEnd(t *testing.T) {
	store := &asking{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store})
	l := fixed(5)
	settle(t, c, noon, false, take("k", l, 3))
	if o := settle(t, c, noon, false, take("k", l, 4))[0]; o.Allowed || o.Cached {
		t.Fatalf("4 of the 2 left: %+v", o)
	}
	asked := store.takes
	o := settle(t, c, noon.Add(10*time.Second), false, take("k", l, 5))[0]
	if o.Allowed || !o.Cached || o.Used != 3 || o.RetryAfter != 50*time.Second || o.ResetAfter != 50*time.Second || store.takes != asked {
		t.Errorf("5 of the 2 left, 10 s later: %+v, %d more takes asked", o, store.takes-asked)
	}
	if o := settle(t, c, noon, false, take("k", l, 6))[0]; !o.Cached || o.RetryAfter != backend.Never {
		t.Errorf("6 of 5: %+v, want an outcome that says it never passes", o)
	}
	if o := settle(t, c, noon, false, take("k", l, 1))[0]; !o.Allowed || o.Used != 4 {
		t.Errorf("1 of the 2 left: %+v, want allowed: fewer hits than were denied", o)
	}
	if o := settle(t, c, noon, false, take("k", l, 4))[0]; !o.Cached || o.Used != 4 {
		t.Errorf("4 of the 1 left: %+v, want denied with what is used by now", o)
	}
	if o := settle(t, c, noon.Add(time.Minute), false, take("k", l, 4))[0]; !o.Allowed {
		t.Errorf("in the next window: %+v", o)
	}
}

// Where hits become free one after another, more hits wait longer: the cache and the store give the same times.
func TestMoreHitsWaitLonger(t *testing.T) {
	for _, algorithm := range []descriptor.Algorithm{descriptor.FixedWindow, descriptor.SlidingWindow, descriptor.SlidingLog, descriptor.TokenBucket, descriptor.LeakyBucket} {
		l := &descriptor.Limit{Requests: 6, Burst: 6, NoDelay: descriptor.NoDelayAll, Algorithm: algorithm, Window: descriptor.Window{Unit: descriptor.Minute}}
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		store := &asking{Store: memory.New(memory.Options{})}
		c := New(Options{Store: store})
		for i := range 6 {
			settle(t, c, noon.Add(time.Duration(i)*time.Second), false, take("k", l, 1))
		}
		smallest := int64(1)
		if settle(t, c, noon.Add(6*time.Second), false, take("k", l, 1))[0].Allowed { // a leaky bucket holds one more
			smallest = 2
			settle(t, c, noon.Add(6*time.Second), false, take("k", l, 2))
		}
		for _, hits := range []int64{2, 4, 5, 3} {
			now := noon.Add(7 * time.Second)
			want := backend.Request{Takes: []backend.Take{take("k", l, hits)}, Outcomes: make([]backend.Outcome, 1)}
			if err := store.Peek(t.Context(), now, &want); err != nil {
				t.Fatal(err)
			}
			if o := settle(t, c, now, false, take("k", l, hits))[0]; o.Allowed || o.RetryAfter != want.Outcomes[0].RetryAfter {
				t.Errorf("%s: %d hits: %+v, want %+v", algorithm, hits, o, want.Outcomes[0])
			}
		}
		asked := store.takes
		if o := settle(t, c, noon.Add(8*time.Second), false, take("k", l, smallest))[0]; o.Allowed || !o.Cached || store.takes != asked {
			t.Errorf("%s: after larger denials the smallest is forgotten: %+v", algorithm, o)
		}
	}
}

// After an override or a reload, more hits may be used than the limit allows. The cache must not deny for longer than
// the store would.
func TestLoweredLimitIsDeniedNoLonger(t *testing.T) {
	for _, algorithm := range []descriptor.Algorithm{descriptor.FixedWindow, descriptor.SlidingWindow, descriptor.SlidingLog, descriptor.TokenBucket} {
		limit := func(n uint64) *descriptor.Limit {
			l := &descriptor.Limit{Requests: n, Burst: n, Algorithm: algorithm, Window: descriptor.Window{Unit: descriptor.Minute}}
			if err := l.Compile(); err != nil {
				t.Fatal(err)
			}
			return l
		}
		store := memory.New(memory.Options{})
		c := New(Options{Store: store})
		for i := range 6 {
			settle(t, c, noon.Add(time.Duration(i)*time.Second), false, take("k", limit(6), 1))
		}
		lower := limit(4)
		for _, hits := range []int64{4, 5, 1} {
			settle(t, c, noon.Add(6*time.Second), false, take("k", lower, hits))
		}
		for at := noon.Add(7 * time.Second); at.Before(noon.Add(3 * time.Minute)); at = at.Add(time.Second) {
			want := backend.Request{Takes: []backend.Take{take("k", lower, 1)}, Outcomes: make([]backend.Outcome, 1)}
			if err := store.Peek(t.Context(), at, &want); err != nil {
				t.Fatal(err)
			}
			o := settle(t, c, at, false, take("k", lower, 1))[0]
			if o.Allowed != want.Outcomes[0].Allowed || o.RetryAfter != want.Outcomes[0].RetryAfter {
				t.Fatalf("%s after %v: %+v, want %+v", algorithm, at.Sub(noon), o, want.Outcomes[0])
			}
			if o.Allowed {
				break
			}
		}
	}
}

// A denial that is in flight during a refund must not be cached: it may be older than the refund.
func TestRefundWhileADenialIsOnItsWay(t *testing.T) {
	store := &asking{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store})
	l := fixed(1)
	settle(t, c, noon, false, take("k", l, 1))
	store.during = func() { settle(t, c, noon, false, take("k", l, -1)) }
	settle(t, c, noon, false, take("k", l, 1))
	if o := settle(t, c, noon, false, take("k", l, 1))[0]; !o.Allowed {
		t.Errorf("after the refund: %+v", o)
	}
}

func TestTogetherIsAnsweredOnlyIfAllAreKnown(t *testing.T) {
	store := &asking{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store})
	narrow, wide := fixed(1), fixed(9)
	both := func() []backend.Take { return []backend.Take{take("narrow", narrow, 1), take("wide", wide, 1)} }
	settle(t, c, noon, true, both()...)
	settle(t, c, noon, true, both()...)
	asked := store.takes
	o := settle(t, c, noon, true, both()...)
	if o[0].Allowed || o[1].Used != 1 || store.takes != asked+2 {
		t.Errorf("a request of which one limit is over: %+v, %d takes asked", o, store.takes-asked)
	}
	if o := settle(t, c, noon, true, take("narrow", narrow, 1)); !o[0].Cached {
		t.Errorf("a request that is over as a whole: %+v", o)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const bytes = 256 << 10
	c := New(Options{Store: memory.New(memory.Options{}), Bytes: bytes})
	l := fixed(0)
	for i := range 20_000 {
		over := take(fmt.Sprintf("some key of fifty bytes, more or less, %012d", i), l, 1)
		over.CountDenied = true
		settle(t, c, noon, false, over)
	}
	used := int64(0)
	for i := range c.shards {
		used += c.shards[i].bytes
	}
	if n := c.Len(); used > bytes || n < bytes/overhead/2 {
		t.Errorf("%d denials in %d bytes, want at most %d bytes and not far below", n, used, bytes)
	}
}

// If the cache has a denial of a request by one limit, the request uses nothing of its other limits.
func TestOthersOnlyReadWhenADenialIsKnown(t *testing.T) {
	store := &asking{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store})
	a, b := take("a", fixed(8), 100), take("b", fixed(0), 100)
	a.CountDenied, b.CountDenied = true, true
	b.Member = 1
	one := b
	one.Hits = 1
	settle(t, c, noon, false, one)
	hits := c.Hits()
	r := backend.Request{Takes: []backend.Take{a, b}, Outcomes: make([]backend.Outcome, 2), Together: true, PeekWhenKnown: true}
	if err := backend.Await(t.Context(), c, noon, &r); err != nil {
		t.Fatal(err)
	}
	if o := r.Outcomes[0]; !o.Allowed || o.Cached || o.Used != 0 {
		t.Errorf("the limit that has all left: %+v", o)
	}
	if o := r.Outcomes[1]; o.Allowed || !o.Cached || c.Hits() != hits+1 {
		t.Errorf("the limit that is known to deny: %+v", o)
	}
	if o := settle(t, c, noon, false, take("a", fixed(8), 1))[0]; !o.Allowed || o.Used != 1 {
		t.Errorf("the first hit of the other limit: %+v", o)
	}
	// A denial without a vote in the request (a shadow rule) stops no other counter.
	b.Vote = backend.VoteNone
	r = backend.Request{Takes: []backend.Take{take("a", fixed(8), 1), b}, Outcomes: make([]backend.Outcome, 2), Together: true, PeekWhenKnown: true}
	if err := backend.Await(t.Context(), c, noon, &r); err != nil {
		t.Fatal(err)
	}
	if o := r.Outcomes[0]; !o.Allowed || o.Used != 2 {
		t.Errorf("beside a shadow rule that is over: %+v", o)
	}
}

// A commit is carried out although another limit of its request is known to deny.
func TestCommitPassesAKnownDenial(t *testing.T) {
	tokens := &descriptor.Limit{
		Requests: 5_000, Window: descriptor.Window{Unit: descriptor.Day},
		Reservations: &descriptor.Reservations{TTL: time.Minute, MaxTTL: time.Hour, MaxShare: descriptor.MaxShareWhole, MaxOutstanding: 1},
	}
	with := func(op backend.ReservationOp, id byte, hits int64) backend.Take {
		t := take("tokens", tokens, hits)
		t.Reservation = &backend.Reservation{ID: backend.ReservationID{id}, Op: op, Final: op == backend.OpCommit}
		return t
	}
	over := take("rate", fixed(1), 1)
	over.CountDenied = true
	for name, together := range map[string]bool{"limits of one rule": false, "counters that are only read": true} {
		t.Run(name, func(t *testing.T) {
			store := &asking{Store: memory.New(memory.Options{})}
			cache := New(Options{Store: store})
			settle(t, cache, noon, false, with(backend.OpReserve, 1, 1_000))
			for range 3 {
				settle(t, cache, noon, false, over)
			}
			if o := settle(t, cache, noon, false, over)[0]; !o.Cached {
				t.Fatalf("the denial is not known: %+v", o)
			}
			rate := over
			if rate.Hits = 0; together {
				rate.Hits, rate.Member = 1, 1
			}
			ask := func(of backend.Take) {
				r := backend.Request{Takes: []backend.Take{of, rate}, Outcomes: make([]backend.Outcome, 2), Together: together, PeekWhenKnown: together}
				if err := backend.Await(t.Context(), cache, noon, &r); err != nil {
					t.Fatal(err)
				}
			}
			ask(with(backend.OpCommit, 1, 900))
			if o := settle(t, cache, noon, false, take("tokens", tokens, 0))[0]; o.Used != 900 {
				t.Errorf("%d are used after the commit of 900", o.Used)
			}
			ask(with(backend.OpReserve, 2, 1_000)) // denied: it leaves no reservation
			if o := settle(t, cache, noon, false, with(backend.OpReserve, 3, 1_000))[0]; !o.Allowed || o.Used != 1_900 {
				t.Errorf("the only reservation that may be outstanding: %+v", o)
			}
		})
	}
}

// A known denial of a limit without a vote decides nothing for the limits next to it.
func TestKnownDenialWithoutAVote(t *testing.T) {
	for _, together := range []bool{false, true} {
		store := &asking{Store: memory.New(memory.Options{})}
		c := New(Options{Store: store})
		enforced, shadow := take("a", fixed(2), 1), take("b", fixed(0), 1)
		shadow.Vote, shadow.CountDenied = backend.VoteNone, true
		settle(t, c, noon, false, shadow)
		for n := range int64(2) {
			for i, o := range settle(t, c, noon, together, shadow, enforced) {
				if allowed := i == 1; o.Allowed != allowed || allowed && o.Used != n+1 {
					t.Errorf("together %t, request %d, take %d: %+v", together, n+1, i, o)
				}
			}
		}
		hits := c.Hits()
		settle(t, c, noon, together, enforced)
		if o := settle(t, c, noon, together, shadow, enforced)[1]; o.Allowed || !o.Cached || c.Hits() <= hits {
			t.Errorf("together %t: a known denial of the limit that votes: %+v", together, o)
		}
	}
}

// Where no limit of a descriptor has a vote, a known denial of one does not keep the others from counting.
func TestKnownDenialWhereNoneVotes(t *testing.T) {
	store := &asking{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store})
	short, long := take("a", fixed(1), 1), take("b", fixed(3), 1)
	short.Vote, long.Vote = backend.VoteNone, backend.VoteNone
	for n := range int64(3) {
		if o := settle(t, c, noon, false, short, long); o[0].Allowed != (n == 0) || !o[1].Allowed || o[1].Used != n+1 {
			t.Errorf("request %d: %+v", n+1, o)
		}
	}
	settle(t, c, noon, false, short, long)
	hits := c.Hits()
	if o := settle(t, c, noon, false, short, long); o[0].Allowed || o[1].Allowed || !o[0].Cached || !o[1].Cached || c.Hits() != hits+2 {
		t.Errorf("both denials are known: %+v", o)
	}
}

// A clock that is set back does not make a denial last longer, and one that is set ahead does not end it.
func TestDenialWhileClockIsSet(t *testing.T) {
	store := &asking{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store})
	l := backendtest.Limit("5/1m,log")
	now := time.Now()
	settle(t, c, now, false, take("k", l, 5))
	settle(t, c, now, false, take("k", l, 1))
	asked := store.takes
	for _, seconds := range []int64{-3600, 3600} {
		if o := settle(t, c, backendtest.Stepped(now, seconds), false, take("k", l, 1))[0]; !o.Cached || o.RetryAfter > time.Minute+time.Millisecond {
			t.Errorf("the clock is set by %d s: %+v", seconds, o)
		}
		later := backendtest.Stepped(now.Add(time.Minute+time.Millisecond), seconds)
		if o := settle(t, c, later, false, take("k", l, 0))[0]; o.Cached || o.Used != 0 {
			t.Errorf("the clock is set by %d s, a minute later: %+v", seconds, o)
		}
		settle(t, c, now, false, take("k", l, 5))
		settle(t, c, now, false, take("k", l, 1))
	}
	if store.takes == asked {
		t.Error("the store was not asked")
	}
}

// A flood of denials pushes others out of the cache. That costs a trip, and does not change answers.
func TestFloodOfDenialsChangesNoAnswer(t *testing.T) {
	store := &asking{Store: memory.New(memory.Options{})}
	c := New(Options{Store: store, Bytes: 64 << 10})
	l := fixed(5)
	quiet := func(i int) backend.Take { return take(fmt.Sprintf("quiet|%d", i), l, 1) }
	const counters = 100
	for i := range counters {
		for range 6 {
			settle(t, c, noon, false, quiet(i))
		}
	}
	for i := range 20_000 {
		over := take(fmt.Sprintf("flood|%d", i), fixed(0), 1)
		over.CountDenied = true
		settle(t, c, noon, false, over)
	}
	asked, known := store.takes, 0
	for round := range 2 {
		for i := range counters {
			o := settle(t, c, noon.Add(10*time.Second), false, quiet(i))[0]
			if o.Allowed || o.Used != 5 || o.RetryAfter != 50*time.Second || o.ResetAfter != 50*time.Second {
				t.Fatalf("round %d, counter %d: %+v", round, i, o)
			}
			if o.Cached {
				known++
			}
		}
	}
	if trips := store.takes - asked; trips == 0 || trips+known != 2*counters || trips > counters*3/2 {
		t.Errorf("%d trips and %d answers of the cache, want about a trip for each of %d counters", trips, known, counters)
	}
	for i := range counters {
		if o := settle(t, c, noon.Add(time.Minute), false, quiet(i))[0]; !o.Allowed || o.Used != 1 {
			t.Fatalf("counter %d in the next window: %+v", i, o)
		}
	}
}
