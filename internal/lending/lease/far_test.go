package lease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Counters that are used twice and never again take the places of others for half a minute, not for the length of their window.
func TestFarCountersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		store := memory.New(memory.Options{})
		l := New(Options{Store: store, Timeout: time.Second, MaxLeases: most, Far: &Far{
			Store: store, MayAsk: func(time.Time) bool { return true }, Denied: func(*backend.Take, *backend.Outcome) {}, Waited: func(int, bool) {},
		}})
		limit := descriptor.Limit{Requests: 1000, Window: descriptor.Window{Unit: descriptor.Day}, Lease: true}
		if err := limit.Compile(); err != nil {
			t.Fatal(err)
		}
		ask := func(key string) {
			t.Helper()
			r := backend.Request{
				Takes:    []backend.Take{{Key: []byte(key), Limit: &limit, Hits: 1, Origin: &backend.Origin{Domain: "d"}}},
				Outcomes: make([]backend.Outcome, 1),
			}
			if err := backend.Await(t.Context(), l, time.Now(), &r); err != nil || !r.Outcomes[0].Allowed {
				t.Fatalf("%s: %+v, %v", key, r.Outcomes[0], err)
			}
		}
		hot := func(key string) bool {
			for range 3 {
				ask(key)
				synctest.Wait()
			}
			return l.Leased([]byte(key))
		}
		for i := range most {
			if !hot(fmt.Sprint("flood", i)) {
				t.Fatal("no permits")
			}
		}
		if hot("customer") {
			t.Fatal("there was no place")
		}
		time.Sleep(31 * time.Second) //nolint:forbidigo // virtual time
		l.Sweep(context.Background(), time.Now())
		if !hot("customer") {
			t.Error("no place after half a minute")
		}
	})
}

// BenchmarkFar shows what a take from permits of another region costs, in turns with one from permits of a near store: as a ratio.
func BenchmarkFar(b *testing.B) {
	store := memory.New(memory.Options{})
	far := &Far{Store: store, MayAsk: func(time.Time) bool { return true }, Denied: func(*backend.Take, *backend.Outcome) {}, Waited: func(int, bool) {}}
	stores := [2]*Leases{New(Options{Store: store}), New(Options{Store: store, Timeout: time.Second, Far: far})}
	limit := descriptor.Limit{Requests: 1 << 31, Window: descriptor.Window{Unit: descriptor.Year}, Lease: true}
	if err := limit.Compile(); err != nil {
		b.Fatal(err)
	}
	took := [2]time.Duration{}
	const turn = 1000
	b.ReportAllocs()
	for range (b.N + turn - 1) / turn {
		for i, l := range stores {
			r := backend.Request{
				Takes:    []backend.Take{{Key: []byte{'k', byte(i)}, Limit: &limit, Hits: 1, Origin: &backend.Origin{Domain: "d"}}},
				Outcomes: make([]backend.Outcome, 1),
			}
			began := time.Now()
			for range turn {
				if err := backend.Await(b.Context(), l, time.Now(), &r); err != nil || !r.Outcomes[0].Allowed {
					b.Fatalf("%+v, %v", r.Outcomes[0], err)
				}
			}
			took[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "times")
}
