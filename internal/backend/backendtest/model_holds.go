package backendtest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// modelHold is a reservation in the model.
type modelHold struct {
	key     string
	id      backend.HoldID
	held    backend.Reservation
	claimed bool // by a take of the group that is being settled
}

// look settles the reservations of a counter that have ended, and fills in what is recorded about the reservation that a take names.
func (m *Model) look(t *backend.Take, s *backend.State, now int64) *modelHold {
	if t.Hold == nil && (t.Limit.Reservations == nil || !t.Limit.Reservations.Release) {
		return nil
	}
	ended := slices.Clone(m.held)
	slices.SortStableFunc(ended, func(a, b *modelHold) int { return int(a.held.Expires - b.held.Expires) })
	for _, h := range ended {
		if h.key == string(t.Key) && h.held.Expires <= now && !h.held.Expire(t.Limit, s, now) {
			m.drop(h)
		}
	}
	if t.Hold == nil {
		return nil
	}
	h := t.Hold
	h.Result, h.Granted, h.Expires, h.Record = backend.HoldDone, 0, 0, backend.HoldRecord{}
	for _, e := range m.held {
		switch {
		case e.key != string(t.Key):
		case h.Op != backend.HoldReserve && e.id == h.ID && !e.claimed:
			e.claimed = true
			h.Record.Reservation, h.Record.Found = e.held, true
			return e
		case h.Op == backend.HoldReserve && e.held.Expires > now:
			if h.Record.Outstanding++; e.id == h.ID {
				h.Record.SameID++
			}
			if first := h.Record.FirstExpiry; first == 0 || e.held.Expires < first {
				h.Record.FirstExpiry = e.held.Expires
			}
		}
	}
	return nil
}

// write keeps what a take has left of its reservation.
func (m *Model) write(t *backend.Take, found *modelHold, now int64) {
	switch {
	case t.Hold == nil:
	case found != nil && !t.Hold.Record.Found:
		m.drop(found)
	case found != nil:
		found.held, found.claimed = t.Hold.Record.Reservation, false
	case t.Hold.Op == backend.HoldReserve && t.Hold.Record.Found:
		e := &modelHold{key: string(t.Key), id: t.Hold.ID, held: t.Hold.Record.Reservation}
		m.held = append(m.held, e)
		var all, oldest = 0, (*modelHold)(nil)
		for _, e := range m.held {
			if e.key != string(t.Key) {
				continue
			}
			if all++; e.held.Expires <= now && (oldest == nil || e.held.Expires < oldest.held.Expires) {
				oldest = e
			}
		}
		if most := t.Limit.Reservations.MaxOutstanding; all > most && oldest != nil {
			m.drop(oldest)
		}
	}
}

func (m *Model) drop(h *modelHold) {
	m.held = slices.DeleteFunc(m.held, func(e *modelHold) bool { return e == h })
}

// drawReservations allows reservations of at most a minute. So they are dropped in the order in which they expire, and one call
// always has room to drop all that have expired.
func drawReservations(t *rapid.T, l *descriptor.Limit) {
	r := allow(l)
	r.MaxTTL, r.Release = r.TTL, rapid.Bool().Draw(t, "release")
	r.MaxOutstanding = rapid.IntRange(1, mostHolds).Draw(t, "max_outstanding")
	if rapid.IntRange(0, 3).Draw(t, "share") == 0 {
		r.MaxShare = rapid.Uint32Range(1, descriptor.MaxShareWhole).Draw(t, "max_share")
	}
}

// drawHolds draws a request that has operations on reservations for some counters, and plain takes for the others.
func drawHolds(t *rapid.T, keys []backend.Take) *backend.Request {
	r := &backend.Request{Together: rapid.Bool().Draw(t, "together")}
	hold := backend.Hold{Op: rapid.SampledFrom([]backend.HoldOp{
		backend.HoldReserve, backend.HoldReserve, backend.HoldCommit, backend.HoldCommit, backend.HoldExtend,
	}).Draw(t, "op")}
	hold.ID[0] = byte(rapid.IntRange(0, 5).Draw(t, "id"))
	ttl := rapid.Int64Range(1, 60_000_000).Draw(t, "ttl")
	switch hold.Op {
	case backend.HoldReserve, backend.HoldExtend:
		hold.TTL = ttl
	case backend.HoldCommit:
		hold.Final, hold.ChargeUnknown = rapid.Bool().Draw(t, "final"), rapid.IntRange(0, 3).Draw(t, "charge_unknown") == 0
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
		if k.Limit.Reservations != nil || hold.Final && hold.ChargeUnknown { // hits that have passed are charged to any limit
			h := hold
			if h.Op == backend.HoldReserve && take.Hits > 0 && rapid.Bool().Draw(t, "smaller") {
				h.Least = rapid.Int64Range(1, take.Hits).Draw(t, "least")
			}
			if h.Op == backend.HoldExtend {
				take.Hits = 0
			}
			take.Hold = &h
		}
		r.Takes = append(r.Takes, take)
	}
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	return r
}
