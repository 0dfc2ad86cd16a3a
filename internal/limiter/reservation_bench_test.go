package limiter_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// BenchmarkReservation measures a reservation with its commit, and a plain decision, in turns: 1,000 of each, on the
// same 100 counters in memory. It reports their time as a ratio. A check before a request with a charge after it are
// two decisions.
func BenchmarkReservation(b *testing.B) {
	const callers, batch = 100, 1000
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 1<<31, reservable)}}}, descriptor.Options{})
	if err != nil {
		b.Fatal(err)
	}
	l.Swap(tree, limiter.Settings{})
	requests := make([]limiter.Request, callers)
	for i := range requests {
		requests[i] = limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{amount(10, fmt.Sprintf("k=%d", i))}}
	}
	var d limiter.Decision
	ask := func(i int, h *limiter.Reservation) {
		r := &requests[i%callers]
		r.Reservation = h
		if err := l.Decide(b.Context(), noon, r, &d); err != nil || d.Code != limiter.OK {
			b.Fatal(d.Code, err)
		}
	}
	var plain, reserved time.Duration
	n := uint64(0)
	for b.Loop() {
		start := time.Now()
		for i := range batch {
			ask(i, nil)
		}
		middle := time.Now()
		for i := range batch {
			n++
			h := limiter.Reservation{Op: limiter.Reserve}
			binary.BigEndian.PutUint64(h.ID[:], n)
			ask(i, &h)
			h.Op, h.Final = limiter.Commit, true
			ask(i, &h)
			if d.Reservations[0].Result != limiter.ReservationDone {
				b.Fatal(d.Reservations)
			}
		}
		plain, reserved = plain+middle.Sub(start), reserved+time.Since(middle)
	}
	b.ReportMetric(float64(plain.Nanoseconds())/float64(n), "ns/decision")
	b.ReportMetric(float64(reserved.Nanoseconds())/float64(n), "ns/reservation")
	b.ReportMetric(float64(reserved)/float64(plain), "decisions/reservation")
}
