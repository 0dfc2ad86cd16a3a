package memory_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
)

func TestSuite(t *testing.T) {
	backendtest.Run(t, func(testing.TB) backend.Store { return memory.New(memory.Options{}) })
}

func TestReservations(t *testing.T) {
	backendtest.RunReservations(t, func(testing.TB) backend.Store { return memory.New(memory.Options{}) })
}

func TestReservationsTogether(t *testing.T) {
	backendtest.RunReservationsTogether(t, func(testing.TB) backend.Store { return memory.New(memory.Options{}) })
}

func TestReservationsStepped(t *testing.T) {
	backendtest.RunReservationsStepped(t, func(testing.TB) backend.Store { return memory.New(memory.Options{}) })
}

func TestFull(t *testing.T) {
	backendtest.RunFull(t, func(most, shared int) backendtest.BoundedStore {
		return memory.New(memory.Options{MaxCounters: most, Shared: shared})
	})
}

// BenchmarkBytes reports the memory of a counter with a key of 24 bytes, including the key and the map.
func BenchmarkBytes(b *testing.B) {
	for _, c := range []struct {
		name, limit string
		hits        int64
	}{
		{"fixed window", "100/1m", 50},
		{"sliding window", "100/1m,sliding", 50},
		{"sliding window, precision 3", "100/1h,sliding,precision=3", 50},
		{"sliding window, precision 12", "100/1h,sliding,precision=12", 50},
		{"sliding log, 10 entries", "10/1h,log", 10},
		{"sliding log, 100 entries", "100/1h,log", 100},
		{"sliding log, 1000 entries", "1000/1h,log", 1000},
		{"token bucket", "100/1m,token", 50},
		{"token bucket, interval", "100/1m,token,interval", 50},
		{"leaky bucket", "100/1m,leaky,burst=99", 50},
	} {
		b.Run(c.name, func(b *testing.B) {
			const keys = 20_000
			l, now := backendtest.Limit(c.limit), time.Unix(2_000_000_000, 0)
			used := 0.0
			for b.Loop() {
				s := memory.New(memory.Options{})
				r := &backend.Request{Takes: make([]backend.Take, 1), Outcomes: make([]backend.Outcome, 1)}
				before := heap()
				for i := range keys {
					key := fmt.Appendf(nil, "domain|user=%012d", i)[:24]
					// Log entries are added one by one, as in production: the spare capacity of a growing list counts too.
					for n := int64(0); n < c.hits; n += max(1, c.hits/10) {
						r.Takes[0] = backend.Take{Key: key, Limit: l, Hits: max(1, c.hits/10)}
						if err := backend.Await(b.Context(), s, now, r); err != nil || !r.Outcomes[0].Allowed {
							b.Fatal(err, r.Outcomes[0])
						}
					}
				}
				used = float64(heap()-before) / keys
				runtime.KeepAlive(s)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(used, "B/key")
		})
	}
}

// BenchmarkBytesOfReservations reports the memory that a reservation takes next to its counter.
func BenchmarkBytesOfReservations(b *testing.B) {
	for _, each := range []int{1, 20, 1000} {
		b.Run(fmt.Sprintf("%d of a counter", each), func(b *testing.B) {
			const all = 20_000
			l, now := backendtest.Limit("1000000/1h,reservations"), time.Unix(2_000_000_000, 0)
			take := func(s *memory.Store, h *backend.Reservation) {
				for i := range all {
					r := &backend.Request{Takes: make([]backend.Take, 1), Outcomes: make([]backend.Outcome, 1)}
					if h != nil {
						binary.BigEndian.PutUint64(h.ID[:], uint64(i))
					}
					r.Takes[0] = backend.Take{Key: fmt.Appendf(nil, "domain|user=%012d", i/each), Limit: l, Hits: 1, Reservation: h}
					if err := backend.Await(b.Context(), s, now, r); err != nil || !r.Outcomes[0].Allowed {
						b.Fatal(err, r.Outcomes[0])
					}
				}
			}
			used := 0.0
			for b.Loop() {
				s := memory.New(memory.Options{})
				take(s, nil)
				before := heap()
				take(s, &backend.Reservation{Op: backend.OpReserve})
				used = float64(heap()-before) / all
				runtime.KeepAlive(s)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(used, "B/reservation")
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A million steps of reservations, with clocks that are set back and ahead.
func TestSoakReservations(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes a minute")
	}
	backendtest.SoakReservations(t, memory.New(memory.Options{}), 1_000_000, rand.Uint64())
}

// A million takes of limits with large numbers, windows of milliseconds, and calendars.
func TestSoakNumbers(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes a minute")
	}
	backendtest.SoakNumbers(t, memory.New(memory.Options{}), 1_000_000, rand.Uint64())
}
