package memory

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

var perMinute = descriptor.Limit{Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}}

func take(s *Store, now time.Time, key string, hits int64) (backend.Outcome, error) {
	r := backend.Request{
		Takes:    []backend.Take{{Key: []byte(key), Limit: &perMinute, Hits: hits}},
		Outcomes: make([]backend.Outcome, 1),
	}
	err := backend.Await(context.Background(), s, now, &r)
	return r.Outcomes[0], err
}

// A client that sends very many values fills the store only up to its bound, and resets no counter in use.
func TestSprayedKeysNeitherGrowTheStoreNorResetCounters(t *testing.T) {
	const bound = 10_000
	s := New(Options{MaxCounters: bound, Shared: -1})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if _, err := take(s, now, "victim", 5); err != nil {
		t.Fatal(err)
	}
	full := 0
	for i := range 10 * bound {
		if _, err := take(s, now, fmt.Sprint("sprayed", i), 1); errors.Is(err, backend.ErrFull) {
			full++
		}
	}
	if s.Len() != bound || full != 9*bound+1 {
		t.Errorf("%d counters after %d denials, want %d after %d", s.Len(), full, bound, 9*bound+1)
	}
	if o, err := take(s, now, "victim", 1); err != nil || o.Allowed {
		t.Errorf("the victim's counter was reset: %+v %v", o, err)
	}
	// A minute later all of it has expired.
	later := now.Add(time.Minute)
	s.Sweep(later)
	for i := range 1000 {
		if _, err := take(s, later, fmt.Sprint("later", i), 1); err != nil {
			t.Fatal("no room after the old counters expired: ", err)
		}
	}
}

// A call that finds no room examines no other counter, regardless of the times of concurrent calls. Only Run makes
// room.
func TestFullStoreIsNotSweptByCalls(t *testing.T) {
	const bound, callers = 20_000, 16
	s := New(Options{MaxCounters: bound, Shared: -1})
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i := range bound {
		if _, err := take(s, now, fmt.Sprint(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range 100 {
				// The times are in order or not, and all are after the end of every counter.
				at := now.Add(time.Minute + time.Duration((c*7919+i*104_729)%600)*time.Second)
				if _, err := take(s, at, fmt.Sprint("new", c, i), 1); !errors.Is(err, backend.ErrFull) {
					t.Errorf("a new counter in a full store: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	if s.Len() != bound {
		t.Errorf("%d counters are left of %d: calls have swept", s.Len(), bound)
	}
}

// A full store finds room about a second after its counters end, long before all shards had their turn.
func TestRunSweepsFullStoreOutOfTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 5000
		s := New(Options{MaxCounters: bound, Shared: -1, SweepInterval: 24 * time.Hour})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		for i := range bound {
			if _, err := take(s, time.Now(), fmt.Sprint(i), 1); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		for i := 0; ; i++ {
			_, err := take(s, time.Now(), fmt.Sprint("new", i), 1)
			if err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // virtual time
		}
		if waited := time.Since(began); waited < 30*time.Second || waited > 62*time.Second {
			t.Errorf("a new counter found room after %v; the others were to expire within a minute", waited)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A take whose caller has left stops before all groups are decided.
func TestTakeEndsWithItsContext(t *testing.T) {
	s := New(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := backend.Request{Outcomes: make([]backend.Outcome, 1000)}
	for i := range r.Outcomes {
		r.Takes = append(r.Takes, backend.Take{Key: fmt.Append(nil, i), Limit: &perMinute, Hits: 1, Member: i})
	}
	err := backend.Await(ctx, s, time.Now(), &r)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if o := r.Outcomes[999]; !o.Failed || s.Len() > 1 {
		t.Errorf("%d of 1000 takes were settled, the last is %+v", s.Len(), o)
	}
}

// Many counters are swept in parts, few in one go.
func TestRunSweepsAndGivesMemoryBack(t *testing.T) {
	racetest.Sequential(t)
	for _, counters := range []int{500_000, few} {
		synctest.Test(t, func(t *testing.T) { sweepsAll(t, counters) })
	}
}

func sweepsAll(t *testing.T, counters int) {
	s := New(Options{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	for i := range counters {
		if _, err := take(s, time.Now(), fmt.Sprint(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(30 * time.Second) //nolint:forbidigo // virtual time
	if s.Len() != counters {
		t.Errorf("%d counters in the middle of their window, want all %d", s.Len(), counters)
	}
	time.Sleep(45 * time.Second) //nolint:forbidigo // virtual time
	if s.Len() != 0 {
		t.Errorf("%d of %d counters after their window and a sweep, want none", s.Len(), counters)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for i := range s.shards {
		if room := &s.shards[i].table; cap(room.index.slots)+cap(room.records.chunks)+cap(room.tails.chunks) > 0 {
			t.Fatalf("of %d counters, shard %d still has memory: %+v", counters, i, room)
		}
	}
}

// fill returns a store with that many counters in use, and their keys.
func fill(tb testing.TB, counters int) (s *Store, keys [][]byte) {
	tb.Helper()
	s = New(Options{})
	r := backend.Request{Takes: []backend.Take{{Limit: &perMinute, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	for i := range counters {
		keys = append(keys, fmt.Appendf(nil, "messaging|to_number=%d|f60", 2065550000+i))
		r.Takes[0].Key = keys[i]
		if err := backend.Await(context.Background(), s, march, &r); err != nil {
			tb.Fatal(err)
		}
	}
	return s, keys
}

// BenchmarkCollect is one garbage collection while a store holds a million counters.
func BenchmarkCollect(b *testing.B) {
	s, _ := fill(b, 1_000_000)
	runtime.GC()
	for b.Loop() {
		runtime.GC()
	}
	runtime.KeepAlive(s)
}

// BenchmarkAdd is the first take of a counter; each round adds a million of them.
func BenchmarkAdd(b *testing.B) {
	_, keys := fill(b, 1_000_000)
	r := backend.Request{Takes: []backend.Take{{Limit: &perMinute, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	var s *Store
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if i%len(keys) == 0 {
			b.StopTimer()
			s = New(Options{})
			b.StartTimer()
		}
		r.Takes[0].Key = keys[i%len(keys)]
		if err := backend.Await(context.Background(), s, march, &r); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHold reports how long the lock of a shard of a full store is held: by the takes that add counters (99.99 %,
// and at most), and by a sweep that drops a third of the counters.
func BenchmarkHold(b *testing.B) {
	for b.Loop() {
		s := New(Options{Shared: -1})
		limits := [3]descriptor.Limit{perMinute, perMinute, perMinute}
		limits[0].Window.Unit = descriptor.Second
		r := backend.Request{Takes: []backend.Take{{Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
		var adding, sweeping []time.Duration
		key := make([]byte, 0, 64)
		for i := range DefaultMaxCounters {
			r.Takes[0].Key, r.Takes[0].Limit = fmt.Appendf(key, "messaging|to_number=%026d|f60", i), &limits[i%3]
			began := time.Now()
			if err := backend.Await(context.Background(), s, march, &r); err != nil {
				b.Fatal(err)
			}
			adding = append(adding, time.Since(began))
		}
		for i := range s.shards {
			began := time.Now()
			s.sweepShard(i, march.Add(time.Second))
			sweeping = append(sweeping, time.Since(began))
		}
		slices.Sort(adding)
		slices.Sort(sweeping)
		b.ReportMetric(float64(adding[len(adding)*9999/10000].Microseconds()), "us/take,99.99%")
		b.ReportMetric(float64(adding[len(adding)-1].Microseconds()), "us/take,longest")
		b.ReportMetric(float64(sweeping[len(sweeping)/2].Microseconds()), "us/sweep,median")
		b.ReportMetric(float64(sweeping[len(sweeping)-1].Microseconds()), "us/sweep,longest")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkTogether is one request with four takes that are settled together.
func BenchmarkTogether(b *testing.B) {
	s, keys := fill(b, 1<<16)
	limit := descriptor.Limit{Requests: 1 << 31, Window: descriptor.Window{Unit: descriptor.Minute}}
	r := backend.Request{Takes: make([]backend.Take, 4), Outcomes: make([]backend.Outcome, 4), Together: true}
	b.ReportAllocs()
	for i := 0; b.Loop(); i += 7919 {
		for j := range r.Takes {
			r.Takes[j] = backend.Take{Key: keys[(i+j*131)%len(keys)], Limit: &limit, Hits: 1, Member: j}
		}
		if err := backend.Await(context.Background(), s, march, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	for _, keys := range []int{1, 1 << 20} {
		var s *Store
		var names [][]byte
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			if s == nil {
				s, names = fill(b, keys)
				b.ResetTimer()
			}
			limit := descriptor.Limit{Requests: 1 << 31, Window: descriptor.Window{Unit: descriptor.Minute}}
			now := time.Now()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				r := backend.Request{Takes: []backend.Take{{Limit: &limit, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
				for i := 0; pb.Next(); i += 7919 {
					r.Takes[0].Key = names[i%keys]
					if err := backend.Await(context.Background(), s, now, &r); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
