package lease

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Permits that were not used for longer than a lease's life are returned, unless the refund could be carried out after
// the end of the window. A counter is forgotten after ten lives without a take. Close returns immediately.
func TestUnusedPermitsAreGivenBack(t *testing.T) {
	bucket := descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket}
	for _, c := range []struct {
		name                    string
		limit                   descriptor.Limit
		ms                      float64
		closes, asks, fails     bool
		none                    bool // the counter holds no permits
		pool, returned, expired int64
		kept                    bool
	}{
		{name: "in use", ms: 500, pool: 10, kept: true},
		{name: "not in use", ms: 501, returned: 10, kept: true},
		{name: "a moment before they could come too late", ms: 57_939, returned: 10},
		{name: "they could come too late", ms: 57_940, pool: 10, kept: true},
		{name: "the window is over", ms: 60_000, expired: 10},
		{name: "no answer", ms: 501, fails: true, expired: 10, kept: true},
		{name: "nothing is held, for ten lives", ms: 5000, none: true, kept: true},
		{name: "for longer", ms: 5001, none: true},
		{name: "another call asks for permits", ms: 5001, none: true, asks: true, kept: true},
		{name: "closing", ms: 1, closes: true, returned: 10},
		{name: "closing when they could come too late", ms: 57_940, closes: true, expired: 10},
		{name: "a bucket has refilled some", limit: bucket, ms: 501, returned: 0, expired: 10, kept: true},
		{name: "closing when a bucket has refilled some", limit: bucket, ms: 100, closes: true, returned: 5, expired: 5},
	} {
		d := &distant{now: func() time.Time { return ms(c.ms) }}
		f := newFleet(1, d)
		all, _, k := holding(t, c.limit, 10)
		all.opts.Store, all.opts.ReturnWithin = d, 2*time.Second
		if c.limit.Requests > 0 {
			all.opts.ReturnWithin = 100 * time.Millisecond
		}
		f.replicas[0] = all
		if c.none {
			k.pool = 0
		}
		if c.asks {
			k.fetch = &fetch{}
		}
		if c.fails {
			d.fail = func() (before, after bool) { return true, false }
		}
		if c.closes {
			all.Close(t.Context(), ms(c.ms))
		} else {
			all.Sweep(t.Context(), ms(c.ms))
		}
		if k.pool != c.pool || (all.Len() == 1) != c.kept || k.gone == c.kept || all.closed.Load() != c.closes {
			t.Errorf("%s: %d permits are held by %d counters (gone %v), want %d, kept %v", c.name, k.pool, all.Len(), k.gone, c.pool, c.kept)
		}
		all.counts.counted(t, c.name, 0, 0, c.returned, c.expired)
		if got := d.trips.Load(); (got > 0) != (c.returned > 0 || c.fails) {
			t.Errorf("%s: the store was asked %d times", c.name, got)
		}
	}
}

// Refunds of many counters are sent in calls of more than a hundred. Each counter gets the right refund.
func TestRefundsOfManyCounters(t *testing.T) {
	d := &distant{now: func() time.Time { return ms(1000) }}
	newFleet(1, d)
	all, _, _ := holding(t, descriptor.Limit{}, 10)
	all.opts.Store, all.opts.ReturnWithin = d, time.Second
	for i := range 1000 {
		key := string([]byte{byte(i), byte(i >> 8)})
		k := hot(t, descriptor.Limit{})
		k.boundary = ms(60_000)
		k.hold(1, noon)
		sh, _ := all.shard([]byte(key))
		sh.counters[key] = k
		all.held.Add(1)
	}
	if all.permits() != 1010 || all.Len() != 1001 {
		t.Errorf("%d permits of %d counters are held, want 1010 of 1001", all.permits(), all.Len())
	}
	all.Sweep(t.Context(), ms(1000))
	all.counts.counted(t, "1001 counters", 0, 0, 1010, 0)
	if n := d.trips.Load(); n < 5 || n > 8 {
		t.Errorf("%d calls", n)
	}
}

// A peek counts unused permits of this replica as unused, and the withheld part of a bucket as used.
func TestPeekCountsPermitsAsUnused(t *testing.T) {
	for _, c := range []struct {
		name      string
		limit     descriptor.Limit
		charged   int64
		hits      int64
		used      int64
		allowed   bool
		otherUsed int64
	}{
		{"a window", descriptor.Limit{}, 110, 1, 100, true, 7},
		{"less is used than is held", descriptor.Limit{}, 3, 1, 0, true, 7},
		{"full, but for permits that are held", descriptor.Limit{}, 1200, 10, 1190, true, 7},
		{"for too many hits", descriptor.Limit{}, 1200, 11, 1190, false, 7},
		{"a bucket", descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket}, 110, 1, 110, true, 17},
	} {
		all, _, k := holding(t, c.limit, 10)
		store := all.opts.Store
		plain := leased(t, descriptor.Limit{Requests: 50, Window: window(1, descriptor.Minute)})
		plain.Lease = false
		r := backend.Request{Outcomes: make([]backend.Outcome, 3), Takes: []backend.Take{
			{Key: []byte("k"), Limit: &k.limit, Hits: c.charged}, {Key: []byte("other"), Limit: &k.limit, Hits: 7, Member: 1}, {Key: []byte("plain"), Limit: plain, Hits: 5, Member: 2},
		}}
		for i := range r.Takes {
			one := backend.Request{Takes: r.Takes[i : i+1], Outcomes: r.Outcomes[i : i+1]}
			if err := backend.Await(t.Context(), store, noon, &one); err != nil {
				t.Fatal(err)
			}
		}
		r.Takes[0].Limit, r.Takes[1].Limit = &k.rule, &k.rule
		r.Takes[0].Hits, r.Takes[1].Hits, r.Takes[2].Hits = c.hits, 1, 1
		takes := slices.Clone(r.Takes)
		if err := all.Peek(t.Context(), noon, &r); err != nil {
			t.Fatal(err)
		}
		o := r.Outcomes
		if o[0].Used != c.used || o[0].Before != c.used || o[0].Allowed != c.allowed || (o[0].RetryAfter > 0) == c.allowed || o[1].Used != c.otherUsed || !o[1].Allowed || o[2].Used != 5 {
			t.Errorf("%s: %+v, want %d used, allowed %v, and %d and 5 of the others", c.name, o, c.used, c.allowed, c.otherUsed)
		}
		for i := range takes {
			if r.Takes[i].Limit != takes[i].Limit {
				t.Errorf("%s: the request's limit is replaced", c.name)
			}
		}
		plainly := backend.Request{Takes: r.Takes[2:], Outcomes: make([]backend.Outcome, 1)}
		if err := all.Peek(t.Context(), noon, &plainly); err != nil || plainly.Outcomes[0].Used != 5 {
			t.Errorf("%s: without leases: %v, %+v", c.name, err, plainly.Outcomes)
		}
	}
}

// A request with one take is answered immediately if the lease of its counter has enough permits. Otherwise nothing has
// changed.
func TestAnswersAtOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*backend.Request)
		ms     float64
		ok     bool
	}{
		{"all that is held", func(*backend.Request) {}, 100, true},
		{"more", func(r *backend.Request) { r.Takes[0].Hits = 11 }, 100, false},
		{"dormant permits", func(*backend.Request) {}, 500, false},
		{"a peek", func(r *backend.Request) { r.Takes[0].Hits = 0 }, 100, false},
		{"a refund", func(r *backend.Request) { r.Takes[0].Hits = -1 }, 100, false},
		{"two takes", func(r *backend.Request) { r.Takes = append(r.Takes, r.Takes[0]) }, 100, false},
		{"another counter", func(r *backend.Request) { r.Takes[0].Key = []byte("other") }, 100, false},
		{"another limit", func(r *backend.Request) {
			l := *r.Takes[0].Limit
			l.Requests++
			r.Takes[0].Limit = &l
		}, 100, false},
	} {
		all, _, k := holding(t, descriptor.Limit{}, 10)
		r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: &k.rule, Hits: 10}}, Outcomes: make([]backend.Outcome, 2)}
		c.change(&r)
		if all.local(ms(c.ms), &r) != c.ok || (k.pool == 0) != c.ok || k.touched.Equal(ms(c.ms)) != c.ok || r.Outcomes[0].Allowed != c.ok || (all.counts.local.Load() == 1) != c.ok {
			t.Errorf("%s: %d permits are left, %+v, %s", c.name, k.pool, r.Outcomes[0], &all.counts)
		}
		if c.ok {
			all.counts.counted(t, c.name, 0, 10, 0, 0)
		}
	}
	all, _, k := holding(t, descriptor.Limit{}, 10)
	r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: &k.rule, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	if !all.local(ms(100), &r) || k.pool != 9 {
		t.Errorf("one hit leaves %d permits", k.pool)
	}
}

// A counter is leased if it is hot and worth it, and if there is room. A counter leased under another limit is not.
func TestWhoGetsALease(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Leases, *backend.Take, *terms)
		ok     bool
	}{
		{"a hot one", func(*Leases, *backend.Take, *terms) {}, true},
		{"at least two permits", func(_ *Leases, _ *backend.Take, m *terms) { m.most = 2 }, true},
		{"a lease of one permit is none", func(_ *Leases, _ *backend.Take, m *terms) { m.most = 1 }, false},
		{"a peek", func(_ *Leases, t *backend.Take, _ *terms) { t.Hits = 0 }, false},
		{"a process that ends", func(l *Leases, _ *backend.Take, _ *terms) { l.closed.Store(true) }, false},
		{"too many", func(l *Leases, _ *backend.Take, _ *terms) { l.opts.MaxLeases = 1 }, false},
		{"as many as may be", func(l *Leases, _ *backend.Take, _ *terms) { l.opts.MaxLeases = 2 }, true},
	} {
		all, _, known := holding(t, descriptor.Limit{}, 10)
		take := backend.Take{Key: []byte("new"), Limit: &known.rule, Hits: 1}
		m := known.terms
		c.change(all, &take, &m)
		sh, hash := all.shard(take.Key)
		var k *hotCounter
		for range 4 {
			if k != nil {
				t.Errorf("%s: it has a lease before its fourth take", c.name)
			}
			k = all.counter(sh, hash, &take, &m, noon)
		}
		if (k != nil) != c.ok || all.Len() != 1+map[bool]int{true: 1}[c.ok] || (sh.counters["new"] != nil) != c.ok {
			t.Errorf("%s: %+v, %d counters", c.name, k, all.Len())
		}
		if k != nil && (k.rate != 8 || k.remaining != -1 || !k.since.Equal(noon) || !k.touched.Equal(noon) || all.counter(sh, hash, &take, &m, noon) != k) {
			t.Errorf("%s: it begins as %+v, want four permits in half a second", c.name, k)
		}
		if k != nil {
			other := *take.Limit
			other.Requests++
			if take.Limit = &other; all.counter(sh, hash, &take, &m, noon) != nil {
				t.Errorf("%s: another limit has the same lease", c.name)
			}
		}
	}
}

// Defaults, and at least one replica.
func TestOptions(t *testing.T) {
	l := New(Options{})
	if o := l.opts; o.MaxLeases != 10_000 || o.ReturnWithin != time.Minute || o.SweepInterval != 250*time.Millisecond || o.StopTimeout != time.Second || l.replicas.Load() != 1 {
		t.Errorf("defaults are %+v, and %d replicas", o, l.replicas.Load())
	}
	l = New(Options{MaxLeases: 1, ReturnWithin: 1, SweepInterval: 1, StopTimeout: 1, Replicas: 2})
	if o := l.opts; o.MaxLeases != 1 || o.ReturnWithin != 1 || o.SweepInterval != 1 || o.StopTimeout != 1 || l.replicas.Load() != 2 {
		t.Errorf("options become %+v, and %d replicas", o, l.replicas.Load())
	}
	if l.SetReplicas(0); l.replicas.Load() != 1 {
		t.Error("no process leases")
	}
}

// registry counts the registered families.
type registry struct{ families int }

func (r *registry) Register(families ...metric.Family) { r.families += len(families) }

// All metrics show their own total.
func TestMetrics(t *testing.T) {
	all, _, _ := holding(t, descriptor.Limit{}, 10)
	n := &all.counts
	n.leased.Add(1)
	n.used.Add(2)
	n.returned.Add(3)
	n.expired.Add(4)
	n.granted.Add(5)
	n.denied.Add(6)
	n.failed.Add(7)
	n.local.Add(8)
	got := make(map[string]float64)
	for _, f := range all.families() {
		read := f.Counts
		if read == nil {
			read = f.Levels
		}
		read(func(v float64, labels ...string) {
			key := f.Name
			for _, l := range labels {
				key += " " + l
			}
			got[key] = v
		})
	}
	var r registry
	if New(Options{Metrics: &r}); r.families != len(all.families()) {
		t.Errorf("%d families are registered", r.families)
	}
	for key, want := range map[string]float64{
		"ratelimitd_lease_permits_total leased": 1, "ratelimitd_lease_permits_total used": 2, "ratelimitd_lease_permits_total returned": 3, "ratelimitd_lease_permits_total expired": 4,
		"ratelimitd_lease_acquisitions_total granted": 5, "ratelimitd_lease_acquisitions_total denied": 6, "ratelimitd_lease_acquisitions_total failed": 7,
		"ratelimitd_lease_local_takes_total": 8,
	} {
		if got[key] != want {
			t.Errorf("%s is %g, want %g", key, got[key], want)
		}
	}
}

// The end of bound's time is not reported as the end of the caller's time.
func TestWhoseTimeIsOver(t *testing.T) {
	l := New(Options{Timeout: time.Second})
	began := time.Now()
	call := new(forwarded)
	ctx, cancel := l.bound(t.Context(), call, began)
	defer cancel()
	if d, ok := ctx.Deadline(); !ok || !d.Equal(began.Add(time.Second)) {
		t.Errorf("a call ends at %s, want a second after it began", d)
	}
	again, cancel := l.bound(t.Context(), call, began.Add(time.Hour))
	defer cancel()
	if d, _ := again.Deadline(); !d.Equal(began.Add(time.Second)) {
		t.Errorf("a call that waits again ends at %s, want a second after it began", d)
	}
	free, cancel := New(Options{}).bound(t.Context(), new(forwarded), began)
	defer cancel()
	if _, ok := free.Deadline(); ok {
		t.Error("a call ends without a timeout")
	}
	sooner, cancel := context.WithDeadline(t.Context(), call.until)
	defer cancel()
	later, cancel := context.WithDeadline(t.Context(), call.until.Add(time.Hour))
	defer cancel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	other := errors.New("other")
	for _, c := range []struct {
		name string
		call *forwarded
		ctx  context.Context //nolint:containedctx // context of the case
		err  error
		ours bool
	}{
		{"our time", call, t.Context(), context.DeadlineExceeded, true},
		{"our time, before the caller's", call, later, context.DeadlineExceeded, true},
		{"the caller's time", call, sooner, context.DeadlineExceeded, false},
		{"no time of ours", new(forwarded), t.Context(), context.DeadlineExceeded, false},
		{"the caller is gone", call, gone, context.DeadlineExceeded, false},
		{"another error", call, t.Context(), other, false},
		{"none", call, t.Context(), nil, false},
	} {
		got := c.call.own(c.ctx, c.err)
		if c.ours != (errors.Is(got, backend.ErrUnavailable) && !errors.Is(got, context.DeadlineExceeded)) || !c.ours && !errors.Is(got, c.err) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if err := ended(gone); !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a caller that is gone sees %v", err)
	}
	past, cancel := context.WithDeadline(t.Context(), began.Add(-time.Second))
	defer cancel()
	if err := ended(past); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a caller whose time is over sees %v", err)
	}
}

// Permits of all counters are dropped when any of them may have been cleared. Those of one limit are not shown under
// another.
func TestVoidAllDropsAllPermits(t *testing.T) {
	all, _, k := holding(t, descriptor.Limit{}, 10)
	other := k.rule
	other.Requests++
	if own, others := all.unused(&backend.Take{Key: []byte("k"), Limit: &k.rule}, noon), all.unused(&backend.Take{Key: []byte("k"), Limit: &other}, noon); own != 10 || others != 0 {
		t.Errorf("%d and %d permits are unused, want 10 and 0", own, others)
	}
	all.VoidAll()
	if all.Len() != 0 || k.pool != 0 || !k.gone {
		t.Errorf("%d permits are left in %d counters", k.pool, all.Len())
	}
	all.counts.counted(t, "all counters", 0, 0, 0, 10)
}

// Acquisitions left open by a panic end: other takes neither wait for them nor find them.
func TestBreakOffEndsAcquisitions(t *testing.T) {
	_, sh, k := holding(t, descriptor.Limit{}, 10)
	f := &fetch{done: make(chan struct{})}
	k.fetch = f
	call := &forwarded{takes: []forwardedTake{{}, {shard: sh, c: k, lead: true}}}
	call.breakOff()
	select {
	case <-f.done:
	default:
		t.Error("others still wait")
	}
	if k.fetch != nil || call.takes[1].lead {
		t.Error("the acquisition is still open")
	}
	call.breakOff() // nothing is left to end
}

// A reused call contains nothing of the previous one.
func TestCallsAreUsedAgain(t *testing.T) {
	all, sh, k := holding(t, descriptor.Limit{}, 10)
	call := &forwarded{leads: true, err: errors.New("lost"), until: noon}
	call.forward(0, forwardedTake{shard: sh, c: k}, &backend.Take{Key: []byte("k"), Limit: &k.rule})
	takes := call.takes
	all.release(call)
	for size, kept := range map[int]bool{1024: true, 1025: false} {
		large := &forwarded{takes: make([]forwardedTake, 3, size)}
		if all.release(large); (len(large.takes) == 0) != kept {
			t.Errorf("a call with room for %d takes is kept: %v", size, !kept)
		}
	}
	if len(call.takes) != 0 || takes[0].c != nil || len(call.request.Takes) != 0 || call.leads || call.err != nil || !call.until.IsZero() {
		t.Errorf("%+v", call)
	}
}

// A request without leases goes to the store unchanged. Peeks at buckets are answered under their tightened limit.
func TestWhatGoesToTheStore(t *testing.T) {
	all, _, k := holding(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket}, 0)
	plain := k.rule
	plain.Lease = false
	r := backend.Request{Takes: []backend.Take{{Key: []byte("plain"), Limit: &plain, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	if settled, err := all.Start(t.Context(), noon, nil, &r, nil); !settled || err != nil || r.Outcomes[0].Used != 1 {
		t.Errorf("settled at once: %v, %v, %+v", settled, err, r.Outcomes)
	}
	r.Takes[0] = backend.Take{Key: []byte("k"), Limit: &k.limit, Hits: 1190}
	if err := backend.Await(t.Context(), all.opts.Store, noon, &r); err != nil || !r.Outcomes[0].Allowed {
		t.Fatal(err, r.Outcomes)
	}
	r.Takes[0].Limit, r.Takes[0].Hits = &k.rule, 1
	if err := all.Peek(t.Context(), noon, &r); err != nil || r.Outcomes[0].Allowed || r.Outcomes[0].Used != 1200 {
		t.Errorf("a bucket without tokens: %v, %+v", err, r.Outcomes)
	}
}

// permits returns the number of unused permits.
func (l *Leases) permits() int64 {
	n := int64(0)
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for _, c := range sh.counters {
			n += c.pool
		}
		sh.mu.Unlock()
	}
	return n
}
