package memory

import (
	"context"
	"errors"
	"fmt"
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

// Whoever sends very many values fills the store up to its bound and no further, and no counter in use is reset by it.
func TestSprayedKeysNeitherGrowTheStoreNorResetCounters(t *testing.T) {
	const bound = 10_000
	metrics := prometheus.NewRegistry()
	s := New(Options{MaxCounters: bound, Metrics: metrics})
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
	if n := testutil.ToFloat64(s.refused); n != float64(full) {
		t.Errorf("the metric counts %v refused counters, want %d", n, full)
	}
	// A minute later all of it has expired: new counters find room without waiting for a sweep of everything.
	later := now.Add(time.Minute)
	found := 0
	for i := range 1000 {
		if _, err := take(s, later, fmt.Sprint("later", i), 1); err == nil {
			found++
		}
	}
	if found != 1000 {
		t.Errorf("only %d of 1000 new counters found room after the old ones expired", found)
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
		for i := range s.shards {
			if p := s.shards[i].peak; p > 0 {
				t.Fatalf("shard %d still has room for %d counters", i, p)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
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
