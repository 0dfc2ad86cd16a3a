package backend_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
)

// reservable returns a limit under which hits can be reserved.
func reservable(text string, change func(*descriptor.Reservations)) *descriptor.Limit {
	l, b := *backendtest.Limit(text), descriptor.DefaultReservations()
	if change != nil {
		change(&b)
	}
	l.Reservations = &b
	return &l
}

// A commit corrects the reserved hits in the window in which they were reserved, under every algorithm.
func TestCommitCorrectsTheWindowOfItsReservation(t *testing.T) {
	const start = int64(1_800_000_000_000_000) // a full minute
	for _, c := range []struct {
		limit string
		after time.Duration // time from the reservation to the commit
		used  int64         // after reserving 60, taking 10 and committing 20
	}{
		{"100/1m", time.Second, 30},
		{"100/1m", time.Minute, 0},
		{"100/1m,first_hit", 59 * time.Second, 30},
		{"100/1m,first_hit", time.Minute, 0},
		{"100/1m,sliding", time.Second, 30},
		{"100/1m,sliding", time.Minute, 29}, // a hit a minute ago has left
		{"100/1m,sliding", 90 * time.Second, 14},
		{"100/1m,sliding,precision=6", 40 * time.Second, 30},
		{"100/1m,sliding,precision=6", 80 * time.Second, 0},
		{"100/1m,log", 59 * time.Second, 30},
		{"100/1m,log", 2 * time.Minute, 0},
		{"100/1m,token", 6 * time.Second, 20}, // 10 came back in the meantime
		{"100/1m,token,interval", 59 * time.Second, 30},
		{"100/1m,token,interval", time.Minute, 0},
	} {
		l := reservable(c.limit, nil)
		var s backend.State
		h := backend.Reservation{Op: backend.OpReserve}
		settle := func(at, hits int64, h *backend.Reservation) backend.Outcome {
			var out [1]backend.Outcome
			backend.Settle([]backend.Take{{Limit: l, Hits: hits, Reservation: h}}, []*backend.State{&s}, out[:], backend.At(at))
			return out[0]
		}
		if o := settle(start, 60, &h); !o.Allowed || o.Used != 60 || h.Granted != 60 || !h.Stored.Found {
			t.Fatalf("%s: reserve 60: %+v %+v", c.limit, o, h)
		}
		if o := settle(start, 41, nil); o.Allowed {
			t.Fatalf("%s: a plain take beside a reservation: %+v", c.limit, o)
		}
		settle(start, 10, nil)
		commit := backend.Reservation{Op: backend.OpCommit, Final: true, Stored: h.Stored}
		at := start + c.after.Microseconds()
		if o := settle(at, 20, &commit); o.Used != c.used || commit.Stored.Found {
			t.Errorf("%s: commit of 20 after %v: %+v, want %d in use", c.limit, c.after, o, c.used)
		}
		again := backend.Reservation{Op: backend.OpCommit, Final: true}
		if o := settle(at, 20, &again); o.Used != c.used || again.Result != backend.ReservationUnknown {
			t.Errorf("%s: the same commit again: %+v %+v", c.limit, o, again)
		}
	}
}

// A commit of more than was reserved charges all of it, in the same window.
func TestCommitOfMoreThanReserved(t *testing.T) {
	const start = int64(1_800_000_000_000_000)
	for _, c := range []struct {
		limit string
		used  int64
	}{
		{"100/1m", 150}, {"100/1m,sliding", 150}, {"100/1m,sliding,precision=6", 150},
		{"100/1m,log", 100}, {"100/1m,token", 100}, {"100/1m,token,interval", 100}, // these remember no more than the limit
	} {
		l := reservable(c.limit, nil)
		var s backend.State
		var out [1]backend.Outcome
		h := backend.Reservation{Op: backend.OpReserve}
		backend.Settle([]backend.Take{{Limit: l, Hits: 50, Reservation: &h}}, []*backend.State{&s}, out[:], backend.At(start))
		commit := backend.Reservation{Op: backend.OpCommit, Final: true, Stored: h.Stored}
		backend.Settle([]backend.Take{{Limit: l, Hits: 150, Reservation: &commit}}, []*backend.State{&s}, out[:], backend.At(start+1))
		if out[0].Used != c.used {
			t.Errorf("%s: %+v, want %d in use", c.limit, out[0], c.used)
		}
	}
}

// Expired reservations are released or stay charged, depending on the rule. A late commit charges the difference either
// way.
func TestExpiredReservations(t *testing.T) {
	const start = int64(1_800_000_000_000_000)
	for _, release := range []bool{false, true} {
		l := reservable("100/1h", func(b *descriptor.Reservations) { b.Release = release })
		var s backend.State
		var out [1]backend.Outcome
		h := backend.Reservation{Op: backend.OpReserve, TTL: 1_000_000}
		settle := func(at, hits int64, h *backend.Reservation) {
			backend.Settle([]backend.Take{{Limit: l, Hits: hits, Reservation: h}}, []*backend.State{&s}, out[:], backend.At(at))
		}
		settle(start, 80, &h)
		progress := backend.Reservation{Op: backend.OpCommit, Stored: h.Stored}
		settle(start+1, 30, &progress)
		r := progress.Stored.ReservationState
		want := int64(80)
		if release {
			want = 30
		}
		if kept := r.Expire(l, &s, start+1_000_000); !kept || s.Count != want || r.Charged != want {
			t.Errorf("release %v: after the end: kept %v, %+v, %+v", release, kept, s, r)
		}
		late := backend.Reservation{Op: backend.OpCommit, Final: true, Stored: backend.StoredReservation{ReservationState: r, Found: true}}
		settle(start+2_000_000, 90, &late)
		if out[0].Used != 90 {
			t.Errorf("release %v: a late commit of 90: %+v", release, out[0])
		}
		if r.Expire(l, &s, start+61_000_000) {
			t.Errorf("release %v: it is kept for ever", release)
		}
	}
}

// A group is granted the same number everywhere, or nothing.
func TestReservationsOfAGroup(t *testing.T) {
	const start = int64(1_800_000_000_000_000)
	wide, tight := reservable("100/1m", nil), reservable("40/1m,sliding", nil)
	for _, c := range []struct{ least, granted int64 }{{0, 0}, {50, 0}, {40, 40}, {1, 40}} {
		states := []backend.State{{}, {}}
		reservations := []backend.Reservation{{Op: backend.OpReserve, Least: c.least}, {Op: backend.OpReserve, Least: c.least}}
		takes := []backend.Take{{Limit: wide, Hits: 60, Reservation: &reservations[0]}, {Limit: tight, Hits: 60, Reservation: &reservations[1], Member: 1}}
		out := make([]backend.Outcome, 2)
		backend.Settle(takes, []*backend.State{&states[0], &states[1]}, out, backend.At(start))
		if states[0].Count != c.granted || states[1].Count != c.granted || out[0].Used != c.granted || out[1].Used != c.granted {
			t.Errorf("at least %d: %+v, reservations %+v, want %d", c.least, out, reservations, c.granted)
		}
	}
}

// The bounds of a rule deny reservations that are too large, too long or too many.
func TestBoundsOfReservations(t *testing.T) {
	const start = int64(1_800_000_000_000_000)
	l := reservable("100/1m", func(b *descriptor.Reservations) {
		b.MaxShare, b.MaxOutstanding, b.MaxTTL = 250_000, 3, 2*time.Minute
	})
	for _, c := range []struct {
		reservation backend.Reservation
		hits        int64
		result      backend.ReservationResult
		grant       int64
	}{
		{backend.Reservation{}, 25, backend.ReservationDone, 25},
		{backend.Reservation{}, 26, backend.ReservationTooLarge, 0},
		{backend.Reservation{Least: 10}, 26, backend.ReservationDone, 25},
		{backend.Reservation{Stored: backend.StoredReservation{Outstanding: 3, FirstExpiry: start + 5_000_000}}, 1, backend.TooManyReservations, 0},
		{backend.Reservation{Stored: backend.StoredReservation{SameID: backend.ReservationsOfOneID}}, 1, backend.TooManyReservations, 0},
		{backend.Reservation{TTL: time.Hour.Microseconds()}, 1, backend.ReservationDone, 1},
	} {
		var s backend.State
		var out [1]backend.Outcome
		h := c.reservation
		h.Op = backend.OpReserve
		backend.Settle([]backend.Take{{Limit: l, Hits: c.hits, Reservation: &h}}, []*backend.State{&s}, out[:], backend.At(start))
		if h.Result != c.result || h.Granted != c.grant || s.Count != c.grant || out[0].Allowed != (c.grant > 0) {
			t.Errorf("%+v of %d: %+v, %+v", c.reservation, c.hits, h, out[0])
		}
		if h.Result == backend.TooManyReservations && out[0].RetryAfter != 5*time.Second && h.Stored.FirstExpiry > 0 {
			t.Errorf("%+v", out[0])
		}
		if h.Expires > start+2*time.Minute.Microseconds() {
			t.Errorf("it lasts longer than the rule allows: %+v", h)
		}
	}
}
