package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// step makes a take of one counter, or of several that are settled together.
func step(s *memory.Store, now time.Time, takes ...backend.Take) ([]backend.Outcome, error) {
	r := &backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes)), Together: len(takes) > 1}
	for i := range r.Takes {
		r.Takes[i].Member = i
	}
	return r.Outcomes, backend.Await(context.Background(), s, now, r)
}

func reservation(key, limit string, hits int64, h backend.Reservation) backend.Take {
	return backend.Take{Key: []byte(key), Limit: backendtest.Limit(limit), Hits: hits, Reservation: &h}
}

// Reservations take up the places of counters. A store without room denies a reservation as a whole, and when
// everything has ended, nothing is left.
func TestReservationsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 20).Draw(t, "most")
		s := memory.New(memory.Options{MaxCounters: most, Shared: rapid.SampledFrom([]int{-1, 16}).Draw(t, "shared")})
		now := time.Unix(2_000_000_000, 0)
		limits := []string{"5/1m,reservations", "5/1m,release", "5/1m,log,release", "5/1m,token,burst=5,reservations", "5/1m"}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			h := backend.Reservation{
				Op:            rapid.SampledFrom([]backend.ReservationOp{backend.OpReserve, backend.OpReserve, backend.OpCommit, backend.OpExtend}).Draw(t, "op"),
				TTL:           rapid.Int64Range(1, 60_000_000).Draw(t, "ttl"),
				Final:         true,
				ChargeUnknown: rapid.Bool().Draw(t, "unknown"),
			}
			h.ID[0] = byte(rapid.IntRange(0, 5).Draw(t, "id"))
			var takes []backend.Take
			for range rapid.IntRange(1, 3).Draw(t, "takes") {
				k := rapid.IntRange(0, 8).Draw(t, "key")
				take := reservation(fmt.Sprint(k), limits[k%len(limits)], int64(rapid.IntRange(0, 3).Draw(t, "hits")), h)
				if take.Limit.Reservations == nil || rapid.IntRange(0, 3).Draw(t, "plain") == 0 {
					take.Reservation = nil
				}
				takes = append(takes, take)
			}
			switch rapid.IntRange(0, 9).Draw(t, "besides") {
			case 0:
				s.Sweep(now)
			case 1:
				if err := s.Reset(context.Background(), []backend.Counter{{Key: takes[0].Key, Limit: takes[0].Limit}}); err != nil {
					t.Fatal(err)
				}
			}
			before := s.Len()
			o, err := step(s, now, takes...)
			switch {
			case err != nil && !errors.Is(err, backend.ErrFull):
				t.Fatal(err)
			case err != nil && !o[0].Failed:
				t.Fatalf("%v, and yet %+v", err, o)
			case err != nil && s.Len() > before:
				t.Fatalf("%v: %d counters and reservations before, %d after", err, before, s.Len())
			case s.Len() > most:
				t.Fatalf("%d counters and reservations, %d is the most", s.Len(), most)
			}
		}
		s.Sweep(now.Add(time.Hour))
		s.Sweep(now.Add(2 * time.Hour)) // a counter that a release has emptied may outlive a shared one by a window
		if n := s.Len(); n != 0 {
			t.Fatalf("%d counters and reservations are left of nothing", n)
		}
		// All room is there again: no rule's share remembers reservations that are gone.
		for i := range most {
			if o, err := step(s, now.Add(2*time.Hour), backend.Take{Key: fmt.Append(nil, "new", i), Limit: backendtest.Limit("5/1m"), Hits: 1}); err != nil || !o[0].Allowed {
				t.Fatalf("counter %d of %d: %v, %+v", i, most, err, o)
			}
		}
	})
}

// An expired reservation stays expired when the clock is set back.
func TestExpiredReservationWhenTheClockIsSetBack(t *testing.T) {
	s, now := memory.New(memory.Options{}), time.Unix(2_000_000_000, 0)
	const limit = "10/1d,release"
	use := func(hits int64, op backend.ReservationOp) (backend.Outcome, *backend.Reservation) {
		take := reservation("k", limit, hits, backend.Reservation{Op: op, TTL: time.Minute.Microseconds(), Final: true})
		o, err := step(s, now, take)
		if err != nil {
			t.Fatal(err)
		}
		return o[0], take.Reservation
	}
	use(8, backend.OpReserve)
	now = now.Add(time.Minute)
	if o, h := use(0, backend.OpExtend); o.Used != 0 || h.Result != backend.ReservationUnknown {
		t.Fatalf("after its end: %+v, %+v", o, h)
	}
	now = now.Add(-30 * time.Second)
	if o, h := use(0, backend.OpExtend); o.Used != 0 || h.Result != backend.ReservationUnknown {
		t.Errorf("it is extended although its hits were given back: %+v, %+v", o, h)
	}
	if o, h := use(3, backend.OpCommit); o.Used != 3 || h.Result != backend.ReservationDone || !h.Late {
		t.Errorf("a late commit: %+v, %+v", o, h)
	}
}

// After the clock was set back, Run drops a reservation when it ends by the new time, even if no request uses its
// counter.
func TestSweepAfterTheClockIsSetBack(t *testing.T) {
	s, now := memory.New(memory.Options{}), time.Unix(2_000_000_000, 0)
	if _, err := step(s, now, reservation("k", "10/1d,reservations", 1, backend.Reservation{Op: backend.OpReserve})); err != nil {
		t.Fatal(err)
	}
	now = now.Add(-12 * time.Hour)
	s.Sweep(now)
	before := s.Len()
	s.Sweep(now.Add(21 * time.Minute)) // max_ttl, the same for late commits, and the time that a sweep looks back
	if after := s.Len(); after != before-1 {
		t.Errorf("%d counters and reservations, %d before", after, before)
	}
}

// A reservation needs a counter that is not shared, and a group without room for all of its reservations makes none.
func TestReservationWithoutRoom(t *testing.T) {
	s, now := memory.New(memory.Options{MaxCounters: 4, Shared: 16}), time.Unix(2_000_000_000, 0)
	const limit = "5/1m,reservations"
	reserve, commit := backend.Reservation{Op: backend.OpReserve}, backend.Reservation{Op: backend.OpCommit, Final: true}
	for _, key := range []string{"a", "b"} { // a counter and a reservation each
		if o, err := step(s, now, reservation(key, limit, 2, reserve)); err != nil || !o[0].Allowed {
			t.Fatalf("%s: %v, %+v", key, err, o)
		}
	}
	for _, keys := range [][]string{{"a"}, {"c"}, {"a", "b"}, {"a", "c"}} {
		var takes []backend.Take
		for _, key := range keys {
			takes = append(takes, reservation(key, limit, 1, reserve))
		}
		if o, err := step(s, now, takes...); !errors.Is(err, backend.ErrFull) || !o[0].Failed {
			t.Errorf("%v: %v, %+v", keys, err, o)
		}
	}
	if o, err := step(s, now, reservation("a", limit, 1, commit)); err != nil || o[0].Before != 2 || o[0].Used != 1 {
		t.Errorf("commit: %v, %+v", err, o)
	}
	if o, err := step(s, now, reservation("b", limit, 1, reserve)); err != nil || o[0].Used != 3 {
		t.Errorf("after a commit has made room: %v, %+v", err, o)
	}
	if o, err := step(s, now, reservation("c", limit, 0, commit)); err != nil || o[0].Failed {
		t.Errorf("a cancel of nothing: %v, %+v", err, o)
	}
}

// Expired reservations are released without a call, and leave nothing behind. Until then a peek answers as if they were
// released.
func TestSweepReleases(t *testing.T) {
	for _, limit := range []string{"5/1h,release", "5/1h,log,release", "5/1h,sliding,precision=3,release"} {
		s, now := memory.New(memory.Options{}), time.Unix(2_000_000_000, 0)
		take := reservation("k", limit, 4, backend.Reservation{Op: backend.OpReserve})
		if o, err := step(s, now, take); err != nil || !o[0].Allowed {
			t.Fatal(err, o)
		}
		peek := func() int64 {
			r := &backend.Request{Takes: []backend.Take{{Key: take.Key, Limit: take.Limit}}, Outcomes: make([]backend.Outcome, 1)}
			if err := s.Peek(t.Context(), now, r); err != nil {
				t.Fatal(err)
			}
			return r.Outcomes[0].Used
		}
		before := peek()
		now = now.Add(time.Minute)
		unswept := peek()
		s.Sweep(now)
		if swept := peek(); before != 4 || unswept != 0 || swept != 0 {
			t.Errorf("%s: %d in use, %d after the end and %d after a sweep", limit, before, unswept, swept)
		}
		late := reservation("k", limit, 3, backend.Reservation{Op: backend.OpCommit, Final: true})
		if o, err := step(s, now, late); err != nil || o[0].Used != 3 {
			t.Errorf("%s: a late commit: %v, %+v", limit, err, o)
		}
		if s.Sweep(now); s.Len() != 1 {
			t.Errorf("%s: %d counters and reservations, want the counter", limit, s.Len())
		}
	}
}

// A take next to reservations costs no allocation, nor does a reservation next to others. The only one of a counter
// costs one, for its key.
func TestTakesBesideReservationsDoNotAllocate(t *testing.T) {
	s, now := memory.New(memory.Options{}), time.Unix(2_000_000_000, 0)
	for _, limit := range []string{"1000000/1h,reservations", "1000000/1h,release"} {
		if _, err := step(s, now, reservation(limit, limit, 1, backend.Reservation{Op: backend.OpReserve})); err != nil {
			t.Fatal(err)
		}
		r := &backend.Request{
			Takes:    []backend.Take{{Key: []byte(limit), Limit: backendtest.Limit(limit), Hits: 1}},
			Outcomes: make([]backend.Outcome, 1),
		}
		if n := testing.AllocsPerRun(1000, func() { _ = backend.Await(t.Context(), s, now, r) }); n != 0 && !racetest.On {
			t.Errorf("%s: %v allocations", limit, n)
		}
		h := &backend.Reservation{TTL: time.Minute.Microseconds()}
		r.Takes[0].Reservation = h
		if n := testing.AllocsPerRun(1000, func() {
			h.Op, h.Final = backend.OpReserve, false
			_ = backend.Await(t.Context(), s, now, r)
			h.Op, h.Final = backend.OpCommit, true
			_ = backend.Await(t.Context(), s, now, r)
		}); n != 0 && !racetest.On {
			t.Errorf("%s: %v allocations of a reservation and its commit", limit, n)
		}
		r.Takes[0].Key = []byte("alone" + limit)
		if n := testing.AllocsPerRun(1000, func() {
			h.Op, h.Final = backend.OpReserve, false
			_ = backend.Await(t.Context(), s, now, r)
			h.Op, h.Final = backend.OpCommit, true
			_ = backend.Await(t.Context(), s, now, r)
		}); n > 1 && !racetest.On {
			t.Errorf("%s: %v allocations of the only reservation of a counter and its commit", limit, n)
		}
	}
}
