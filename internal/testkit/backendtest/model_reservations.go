package backendtest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// modelReservation is a reservation in the model.
type modelReservation struct {
	key      string
	id       backend.ReservationID
	reserved backend.ReservationState
	claimed  bool // whether a take of the group that is being settled uses it
}

// look settles the reservations of a counter that have ended, and fills in the stored reservation of a take.
func (m *Model) look(t *backend.Take, s *backend.State, now int64) *modelReservation {
	if t.Reservation == nil && (t.Limit.Reservations == nil || !t.Limit.Reservations.Release) {
		return nil
	}
	ended := slices.Clone(m.reserved)
	slices.SortStableFunc(ended, func(a, b *modelReservation) int { return int(a.reserved.Expires - b.reserved.Expires) })
	for _, h := range ended {
		if h.key == string(t.Key) && h.reserved.Expires <= now && !h.reserved.Expire(t.Limit, s, now) {
			m.drop(h)
		}
	}
	if t.Reservation == nil {
		return nil
	}
	h := t.Reservation
	h.Result, h.Granted, h.Expires, h.Stored = backend.ReservationDone, 0, 0, backend.StoredReservation{}
	for _, e := range m.reserved {
		switch {
		case e.key != string(t.Key):
		case h.Op != backend.OpReserve && e.id == h.ID && !e.claimed:
			e.claimed = true
			h.Stored.ReservationState, h.Stored.Found = e.reserved, true
			return e
		case h.Op == backend.OpReserve && e.reserved.Expires > now:
			if h.Stored.Outstanding++; e.id == h.ID {
				h.Stored.SameID++
			}
			if first := h.Stored.FirstExpiry; first == 0 || e.reserved.Expires < first {
				h.Stored.FirstExpiry = e.reserved.Expires
			}
		}
	}
	return nil
}

// write stores a take's reservation as settling left it.
func (m *Model) write(t *backend.Take, found *modelReservation, now int64) {
	switch {
	case t.Reservation == nil:
	case found != nil && !t.Reservation.Stored.Found:
		m.drop(found)
	case found != nil:
		found.reserved, found.claimed = t.Reservation.Stored.ReservationState, false
	case t.Reservation.Op == backend.OpReserve && t.Reservation.Stored.Found:
		e := &modelReservation{key: string(t.Key), id: t.Reservation.ID, reserved: t.Reservation.Stored.ReservationState}
		m.reserved = append(m.reserved, e)
		var all, oldest = 0, (*modelReservation)(nil)
		for _, e := range m.reserved {
			if e.key != string(t.Key) {
				continue
			}
			if all++; e.reserved.Expires <= now && (oldest == nil || e.reserved.Expires < oldest.reserved.Expires) {
				oldest = e
			}
		}
		if most := t.Limit.Reservations.MaxOutstanding; all > most && oldest != nil {
			m.drop(oldest)
		}
	}
}

func (m *Model) drop(h *modelReservation) {
	m.reserved = slices.DeleteFunc(m.reserved, func(e *modelReservation) bool { return e == h })
}

// drawReservations allows reservations of at most a minute. So they are dropped in the order in which they expire, and
// one call always has room to drop all that have expired.
func drawReservations(t *rapid.T, l *descriptor.Limit) {
	r := allow(l)
	r.MaxTTL, r.Release = r.TTL, rapid.Bool().Draw(t, "release")
	r.MaxOutstanding = rapid.IntRange(1, mostReservations).Draw(t, "max_outstanding")
	if rapid.IntRange(0, 3).Draw(t, "share") == 0 {
		r.MaxShare = rapid.Uint32Range(1, descriptor.MaxShareWhole).Draw(t, "max_share")
	}
}

// drawOperations draws a request that has operations on reservations for some counters, and plain takes for the others.
func drawOperations(t *rapid.T, keys []backend.Take) *backend.Request {
	r := &backend.Request{Together: rapid.Bool().Draw(t, "together")}
	reservation := backend.Reservation{Op: rapid.SampledFrom([]backend.ReservationOp{
		backend.OpReserve, backend.OpReserve, backend.OpCommit, backend.OpCommit, backend.OpExtend,
	}).Draw(t, "op")}
	reservation.ID[0] = byte(rapid.IntRange(0, 5).Draw(t, "id"))
	ttl := rapid.Int64Range(1, 60_000_000).Draw(t, "ttl")
	switch reservation.Op {
	case backend.OpReserve, backend.OpExtend:
		reservation.TTL = ttl
	case backend.OpCommit:
		reservation.Final, reservation.ChargeUnknown = rapid.Bool().Draw(t, "final"),
			rapid.IntRange(0, 3).Draw(t, "charge_unknown") == 0
	}
	member, vote := 0, backend.VoteAll
	for _, k := range rapid.Permutation(keys).Draw(t, "counters")[:rapid.IntRange(1, len(keys)).Draw(t, "takes")] {
		if rapid.IntRange(0, 2).Draw(t, "member") > 0 {
			member++
			vote = rapid.SampledFrom([]backend.Vote{backend.VoteAll, backend.VoteAll, backend.VoteAny}).Draw(t, "vote")
		}
		take := backend.Take{Key: k.Key, Limit: k.Limit, Member: member, Vote: vote}
		if rapid.IntRange(0, 3).Draw(t, "no vote") == 0 {
			take.Vote = backend.VoteNone
		}
		capacity := int64(k.Limit.Capacity())
		take.Hits = rapid.OneOf(
			rapid.Int64Range(0, 4), rapid.SampledFrom([]int64{capacity, capacity/2 + 1, capacity + 1, 2 * capacity}),
		).Draw(t, "hits")
		if k.Limit.Algorithm == descriptor.SlidingLog && capacity > 1000 {
			take.Hits = min(take.Hits, 500) // the log grows with every hit
		}
		// hits that have passed are charged to any limit
		if k.Limit.Reservations != nil || reservation.Final && reservation.ChargeUnknown {
			h := reservation
			if h.Op == backend.OpReserve && take.Hits > 0 && rapid.Bool().Draw(t, "smaller") {
				h.Least = rapid.Int64Range(1, take.Hits).Draw(t, "least")
			}
			if h.Op == backend.OpExtend {
				take.Hits = 0
			}
			take.Reservation = &h
		}
		r.Takes = append(r.Takes, take)
	}
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	return r
}
