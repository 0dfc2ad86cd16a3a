package lease

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// overseas are leases of a store in memory that represents another region.
type overseas struct {
	*Leases
	t      testing.TB
	store  *memory.Store
	mayAsk atomic.Bool
}

func newOverseas(t testing.TB, most int) *overseas {
	d := &overseas{t: t, store: memory.New(memory.Options{})}
	d.mayAsk.Store(true)
	d.Leases = New(Options{Store: d.store, Timeout: time.Second, MaxLeases: most, Far: &Far{
		Store: d.store, MayAsk: func(time.Time) bool { return d.mayAsk.Load() },
		Denied: func(*backend.Take, *backend.Outcome) {}, Waited: func(int, bool) {},
	}})
	return d
}

func perWindow(t testing.TB, n uint64, unit descriptor.Unit) *descriptor.Limit {
	l := &descriptor.Limit{Requests: n, Window: descriptor.Window{Unit: unit}, Lease: true}
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	return l
}

// ask requests a hit of each key, all in one descriptor, and reports whether all are allowed.
func (d *overseas) ask(origin *backend.Origin, limits map[string]*descriptor.Limit) (allowed bool) {
	d.t.Helper()
	r := backend.Request{Outcomes: make([]backend.Outcome, len(limits))}
	for _, key := range slices.Sorted(maps.Keys(limits)) {
		r.Takes = append(r.Takes, backend.Take{Key: []byte(key), Limit: limits[key], Hits: 1, Origin: origin})
	}
	if err := backend.Await(d.t.Context(), d, time.Now(), &r); err != nil {
		d.t.Fatal(err)
	}
	return !slices.ContainsFunc(r.Outcomes, func(o backend.Outcome) bool { return !o.Allowed })
}

var here = &backend.Origin{Domain: "d", Entries: []descriptor.Entry{{Key: "k", Value: "v"}}}

// leased requests a key until it is hot, and reports whether permits of it are held.
func (d *overseas) leased(key string, l *descriptor.Limit) bool {
	for range 4 {
		d.ask(here, map[string]*descriptor.Limit{key: l})
		synctest.Wait()
	}
	return d.held(key, l) > 0
}

func (d *overseas) held(key string, l *descriptor.Limit) int64 {
	return d.unused(&backend.Take{Key: []byte(key), Limit: l}, time.Now())
}

// Counters that are used a few times and never again occupy places for half a minute, not for the length of their
// window. No timer keeps them in memory.
func TestFarCountersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		d, limit := newOverseas(t, most), perWindow(t, 1000, descriptor.Day)
		var flood []*hotCounter
		for i := range most {
			key := fmt.Sprint("flood", i)
			if !d.leased(key, limit) {
				t.Fatal("no permits")
			}
			sh, _ := d.shard([]byte(key))
			flood = append(flood, sh.counters[key])
		}
		if d.leased("customer", limit) {
			t.Fatal("there was no place")
		}
		time.Sleep(31 * time.Second) //nolint:forbidigo // virtual time
		d.Sweep(t.Context(), time.Now())
		if !d.leased("customer", limit) {
			t.Error("no place after half a minute")
		}
		flood = slices.DeleteFunc(flood, func(k *hotCounter) bool { return !k.gone })
		if len(flood) < most/2 || slices.ContainsFunc(flood, func(k *hotCounter) bool { return k.edge != nil }) {
			t.Errorf("%d counters of the flood are forgotten, or a timer keeps one", len(flood))
		}
	})
}

// A descriptor with long texts is not leased: each counter would keep a copy of them.
func TestFarCountersAreSmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, limit := newOverseas(t, 8), map[string]*descriptor.Limit{"k": perWindow(t, 1000, descriptor.Minute)}
		long := &backend.Origin{Domain: "d", Entries: []descriptor.Entry{{Key: "k", Value: strings.Repeat("v", farTexts)}}}
		for range 10 {
			d.ask(long, limit)
			synctest.Wait()
		}
		if d.Len() != 0 {
			t.Error("a copy of the descriptor is kept")
		}
	})
}

// When many windows end at the same time, the replica asks for only a few counters before a request needs them.
func TestFarWindowsEndAtOnce(t *testing.T) {
	for _, mayAsk := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			d, limit := newOverseas(t, 8), perWindow(t, 1000, descriptor.Minute)
			time.Sleep(30 * time.Second) //nolint:forbidigo // virtual time
			if !d.leased("k", limit) {
				t.Fatal("no permits")
			}
			d.mayAsk.Store(mayAsk)
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + time.Second))) //nolint:forbidigo // virtual time
			if held := d.held("k", limit); (held > 0) != mayAsk {
				t.Errorf("may ask: %v; %d permits in the new window", mayAsk, held)
			}
			if !d.leased("k", limit) {
				t.Error("a request did not ask for permits")
			}
		})
	}
}

// Requests of two limits that compete for the last permits lose none: all hits that the store has counted have passed
// or are held as permits.
func TestFarPermitsOfTwoLimits(t *testing.T) {
	d := newOverseas(t, 8)
	limits := map[string]*descriptor.Limit{"a": perWindow(t, 1<<30, descriptor.Year), "b": perWindow(t, 2000, descriptor.Year)}
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 2000 {
				if d.ask(here, limits) {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	d.asking.Wait()
	for key, l := range limits {
		r := backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: l}}, Outcomes: make([]backend.Outcome, 1)}
		if err := d.store.Peek(t.Context(), time.Now(), &r); err != nil {
			t.Fatal(err)
		}
		if counted, held := r.Outcomes[0].Used, d.held(key, l); counted != passed.Load()+held {
			t.Errorf("%s: %d hits are counted; %d have passed, and %d permits are held", key, counted, passed.Load(), held)
		}
	}
}

// BenchmarkFar compares takes from permits of another region with takes from permits of a near store, in turns. The
// result is the ratio of the fastest turns, in which neither asks for permits.
func BenchmarkFar(b *testing.B) {
	d, limit := newOverseas(b, 8), perWindow(b, 1<<31, descriptor.Year)
	stores := [2]*Leases{New(Options{Store: d.store}), d.Leases}
	took := [2]time.Duration{time.Hour, time.Hour}
	const turn = 1000
	b.ReportAllocs()
	for range (b.N + turn - 1) / turn {
		for i, l := range stores {
			r := backend.Request{
				Takes:    []backend.Take{{Key: []byte{'k', byte(i)}, Limit: limit, Hits: 1, Origin: here}},
				Outcomes: make([]backend.Outcome, 1),
			}
			began := time.Now()
			for range turn {
				if err := backend.Await(b.Context(), l, time.Now(), &r); err != nil || !r.Outcomes[0].Allowed {
					b.Fatalf("%+v, %v", r.Outcomes[0], err)
				}
			}
			took[i] = min(took[i], time.Since(began))
		}
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "times")
}
