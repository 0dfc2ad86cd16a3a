package lease

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// distant is a store that many replicas share. It has a separate clock and a delay in each direction.
type distant struct {
	now         func() time.Time // the replicas' clock; default time.Now, which is virtual
	order       sync.Mutex       // orders the readings of another clock like the counting
	store       backend.Store
	there, back time.Duration
	skew        time.Duration // offset of the store's clock
	drift       float64       // relative drift of the store's clock

	// nil if no call fails; a call that fails after the store has carried it out is ambiguous
	fail func() (before, after bool)

	start time.Time
	trips atomic.Int64
	hits  atomic.Int64 // charged hits, minus returned ones
}

var errLost = errors.New("no answer")

type askedKey struct{}

func (d *distant) clock() time.Time {
	now := d.local()
	return now.Add(d.skew + time.Duration(float64(now.Sub(d.start))*d.drift))
}

func (d *distant) local() time.Time {
	if d.now != nil {
		return d.now()
	}
	return time.Now()
}

// Start implements backend.Store.
func (d *distant) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, d.take(ctx, now, r)
}

func (d *distant) take(ctx context.Context, _ time.Time, r *backend.Request) error {
	d.trips.Add(1)
	time.Sleep(d.there) //nolint:forbidigo // virtual time
	if d.now != nil {
		d.order.Lock()
		defer d.order.Unlock()
	}
	now := d.clock()
	before, after := false, false
	if d.fail != nil {
		before, after = d.fail()
	}
	var err error
	if !before {
		err = backend.Await(ctx, d.store, now, r)
		for i := range r.Outcomes {
			d.hits.Add(r.Outcomes[i].Used - r.Outcomes[i].Before)
		}
	}
	if a, ok := ctx.Value(askedKey{}).(*admission); ok {
		a.at, a.hits = now, r.Takes[0].Hits
		if before || after && !r.Outcomes[0].Allowed {
			a.at = time.Time{} // nothing was counted
		}
	}
	time.Sleep(d.back) //nolint:forbidigo // virtual time
	if before || after {
		for i := range r.Outcomes {
			r.Outcomes[i] = backend.Outcome{Failed: true}
		}
		return errLost
	}
	return err
}

func (d *distant) Peek(ctx context.Context, _ time.Time, r *backend.Request) error {
	return d.store.Peek(ctx, d.clock(), r)
}

// fleet is a number of replicas that lease from one store, and the takes that they have admitted.
type fleet struct {
	store    *distant
	replicas []*Leases

	mu       sync.Mutex
	admitted []admission
	asked    atomic.Int64 // number of takes
}

type admission struct {
	at    time.Time // time on the store's clock
	hits  int64
	maybe bool // counted in the store, but the answer was lost

	// astride: a lease answered while one window ended and the next started. Either may have admitted the take.
	astride bool
}

func newFleet(replicas int, d *distant) *fleet {
	d.start = d.local()
	if d.store == nil {
		d.store = memory.New(memory.Options{})
	}
	f := &fleet{store: d}
	for range replicas {
		f.replicas = append(f.replicas, New(Options{Store: d, Replicas: replicas, ReturnWithin: 2 * time.Second}))
	}
	return f
}

// crash replaces a replica by a new one. The permits of the old one are lost.
func (f *fleet) crash(i int) {
	f.replicas[i] = New(f.replicas[i].opts)
}

// take makes a take on one of the replicas. If the take called the store, it took effect when the store answered,
// otherwise when it was answered.
func (f *fleet) take(i int, key string, l *descriptor.Limit, hits int64) backend.Outcome {
	f.asked.Add(1)
	var a admission
	ctx := context.WithValue(context.Background(), askedKey{}, &a)
	r := backend.Request{
		Takes:    []backend.Take{{Key: []byte(key), Limit: l, Hits: hits}},
		Outcomes: make([]backend.Outcome, 1),
	}
	asked := f.store.clock()
	err := backend.Await(ctx, f.replicas[i], f.store.local(), &r)
	o := r.Outcomes[0]
	if (err != nil) != o.Failed {
		panic("an error without a failed take, or the other way round")
	}
	switch {
	case hits > 0 && o.Failed && !a.at.IsZero():
		a.hits, a.maybe = min(a.hits, hits), true
	case hits > 0 && o.Allowed:
		a.hits = hits
		if a.at.IsZero() {
			a.at = f.store.clock()
			before, _ := l.Window.Bounds(asked.UnixMicro())
			after, _ := l.Window.Bounds(a.at.UnixMicro())
			a.astride = before != after
		}
	default:
		return o
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admitted = append(f.admitted, a)
	return o
}

func (f *fleet) total() int64 {
	n := int64(0)
	for _, a := range f.admitted {
		if !a.maybe {
			n += a.hits
		}
	}
	return n
}

// permits returns the number of permits that the replicas hold.
func (f *fleet) permits() int64 {
	n := int64(0)
	for _, r := range f.replicas {
		n += r.permits()
	}
	return n
}

// violations returns how many of the admitted takes the limit alone would deny, deciding them in order.
func violations(l *descriptor.Limit, admitted []admission) int {
	slices.SortStableFunc(admitted, func(a, b admission) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	var s backend.State
	n := 0
	for _, a := range admitted {
		if a.astride {
			continue
		}
		takes := []backend.Take{{Limit: l, Hits: a.hits}}
		outcomes := make([]backend.Outcome, 1)
		backend.Settle(takes, []*backend.State{&s}, outcomes, backend.At(a.at.UnixMicro()))
		if !outcomes[0].Allowed && !a.maybe {
			n++
		}
	}
	return n
}

// leased returns a compiled limit with leasing on.
func leased(t testing.TB, l descriptor.Limit) *descriptor.Limit {
	t.Helper()
	l.Lease = true
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	return &l
}

func window(n uint32, unit descriptor.Unit) descriptor.Window {
	return descriptor.Window{Unit: unit, Multiplier: n}
}

// limits returns one limit for each variant that can be leased.
func limits(t testing.TB, requests uint64, w descriptor.Window) map[string]*descriptor.Limit {
	return map[string]*descriptor.Limit{
		"fixed window":           leased(t, descriptor.Limit{Requests: requests, Window: w}),
		"fixed window first hit": leased(t, descriptor.Limit{Requests: requests, Window: w, FirstHit: true}),
		"sliding window":         leased(t, descriptor.Limit{Requests: requests, Window: w, Algorithm: descriptor.SlidingWindow}),
		"sliding window of 4":    leased(t, descriptor.Limit{Requests: requests, Window: w, Algorithm: descriptor.SlidingWindow, Precision: 4}),
		"sliding log":            leased(t, descriptor.Limit{Requests: requests, Window: w, Algorithm: descriptor.SlidingLog}),
		"token bucket":           leased(t, descriptor.Limit{Requests: requests, Window: w, Algorithm: descriptor.TokenBucket}),
		"token bucket, small":    leased(t, descriptor.Limit{Requests: requests, Window: w, Algorithm: descriptor.TokenBucket, Burst: requests / 2}),
		"token bucket, large":    leased(t, descriptor.Limit{Requests: requests, Window: w, Algorithm: descriptor.TokenBucket, Burst: requests * 3}),
		"interval bucket":        leased(t, descriptor.Limit{Requests: requests / 3, Window: w, Algorithm: descriptor.TokenBucket, Burst: requests, Interval: true}),
		"interval, first hit":    leased(t, descriptor.Limit{Requests: requests / 3, Window: w, Algorithm: descriptor.TokenBucket, Burst: requests, Interval: true, FirstHit: true}),
		"leaky bucket, policer":  leased(t, descriptor.Limit{Requests: requests, Window: w, Algorithm: descriptor.LeakyBucket, Burst: requests, NoDelay: descriptor.NoDelayAll}),
	}
}

func leasedTake(l *descriptor.Limit) *backend.Take {
	return &backend.Take{Key: []byte("k"), Limit: l, Hits: 1}
}
