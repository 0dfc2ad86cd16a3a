package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

var perMinute = descriptor.Limit{Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}}

func take(s *Store, now time.Time, key string, hits int64) (backend.Outcome, error) {
	r := backend.Request{
		Takes:    []backend.Take{{Key: []byte(key), Limit: &perMinute, Hits: hits}},
		Outcomes: make([]backend.Outcome, 1),
	}
	err := s.Take(context.Background(), now, &r)
	return r.Outcomes[0], err
}

// A caller that sends very many values fills the store only up to its bound, and resets no counter in use.
func TestSprayedKeysNeitherGrowTheStoreNorResetCounters(t *testing.T) {
	const bound = 10_000
	metrics := prometheus.NewRegistry()
	s := New(Options{MaxCounters: bound, Shared: -1, Metrics: metrics})
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
		t.Errorf("%d counters after %d refusals, want %d after %d", s.Len(), full, bound, 9*bound+1)
	}
	if o, err := take(s, now, "victim", 1); err != nil || o.Allowed {
		t.Errorf("the victim's counter was reset: %+v %v", o, err)
	}
	if n := testutil.ToFloat64(s.metrics.refused); n != float64(full) {
		t.Errorf("the metric counts %v refused counters, want %d", n, full)
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

// A call that finds no room examines no other counter, whatever the times of concurrent calls are. Only Run makes room.
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

// A take whose caller has left stops before it has decided everything.
func TestTakeEndsWithItsContext(t *testing.T) {
	s := New(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := backend.Request{Outcomes: make([]backend.Outcome, 1000)}
	for i := range r.Outcomes {
		r.Takes = append(r.Takes, backend.Take{Key: fmt.Append(nil, i), Limit: &perMinute, Hits: 1, Member: i})
	}
	err := s.Take(ctx, time.Now(), &r)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if o := r.Outcomes[999]; !o.Failed || s.Len() > 1 {
		t.Errorf("%d of 1000 takes were settled, the last is %+v", s.Len(), o)
	}
}

func TestRunSweepsAndGivesMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		for i := range 500_000 {
			if _, err := take(s, time.Now(), fmt.Sprint(i), 1); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Second) //nolint:forbidigo // virtual time
		if s.Len() != 500_000 {
			t.Errorf("%d counters in the middle of their window, want all", s.Len())
		}
		time.Sleep(45 * time.Second) //nolint:forbidigo // virtual time
		if s.Len() != 0 {
			t.Errorf("%d counters after their window and a sweep, want none", s.Len())
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for i := range s.shards {
			if p := s.shards[i].peak; p > 0 {
				t.Fatalf("shard %d still has room for %d counters", i, p)
			}
		}
	})
}

func BenchmarkTake(b *testing.B) {
	for _, keys := range []int{1, 1 << 20} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			s := New(Options{})
			names := make([][]byte, keys)
			for i := range names {
				names[i] = fmt.Appendf(nil, "messaging|to_number=%d|f60", 2065550000+i)
			}
			now := time.Now()
			limit := descriptor.Limit{Requests: 1 << 31, Window: descriptor.Window{Unit: descriptor.Year}}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				r := backend.Request{Takes: []backend.Take{{Limit: &limit, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
				for i := 0; pb.Next(); i += 7919 {
					r.Takes[0].Key = names[i%keys]
					if err := s.Take(context.Background(), now, &r); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
