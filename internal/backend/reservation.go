package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// ReservationID identifies a reservation of a counter.
type ReservationID [16]byte

// ReservationOp is an operation of a take on a reservation.
type ReservationOp uint8

// The operations. Only OpReserve can be denied.
const (
	OpReserve ReservationOp = iota + 1 // takes the hits, and keeps them as reserved
	OpCommit                           // sets the reservation's charge to Take.Hits
	OpExtend                           // postpones the end of the reservation, never shortens it; Take.Hits is 0
)

// ReservationResult is the result of one operation on a reservation.
type ReservationResult uint8

// The results. With TooManyReservations and ReservationTooLarge the take is denied.
const (
	ReservationDone     ReservationResult = iota // done; or denied by the limit, as the outcome says
	ReservationUnknown                           // nothing is stored: it was committed before, or it is too late
	TooManyReservations                          // the counter has as many reservations as it may have
	ReservationTooLarge                          // one reservation may not be as large as this
)

// Reservation is the part of a take that concerns a reservation.
//
// Reserved hits are added to the counter immediately, like those of any take. So other takes respect them, and cost no
// more than without reservations. The store keeps a ReservationState next to the counter until the reservation ends. A
// commit corrects the counter by the difference between the used and the reserved hits, in the window in which they
// were reserved, and removes the ReservationState. A repeated commit finds none and changes nothing. Example: 60 hits
// are reserved and 20 are used; the commit gives back 40.
type Reservation struct {
	ID ReservationID
	Op ReservationOp

	// reserve, extend: how long it lasts from now, in microseconds; 0 means the rule's default; at most the rule's maximum
	TTL   int64
	Least int64 // reserve: the smallest number of hits that are reserved if Take.Hits do not fit; 0 means all or none

	Final bool // commit: it ends the reservation; otherwise Take.Hits are the hits used so far

	// ChargeUnknown makes a final commit of an unknown reservation charge its hits now, whether or not they fit. It is for
	// IDs that clients choose: their hits may have passed while the store could not be reached.
	ChargeUnknown bool

	// Filled in by the store.
	Result  ReservationResult
	Granted int64 // reserve: the hits that are reserved; 0 if denied
	Expires int64 // reserve, extend: when the reservation expires, in microseconds since the Unix epoch
	Late    bool  // commit: the reservation had expired

	// Stored is the reservation in the store. The store fills it in before Settle. Afterwards it keeps or removes the
	// reservation as Settle left it.
	Stored StoredReservation
}

// StoredReservation is how a store passes a reservation to Settle and back.
type StoredReservation struct {
	ReservationState
	Found bool // before Settle: it is stored; after: it has to be

	Outstanding int   // reserve: how many reservations the counter has, without expired ones
	FirstExpiry int64 // reserve: when the first of them expires
	SameID      int   // reserve: how many of them have this ID
}

// ReservationState is the part of a reservation that a store keeps. Times are in microseconds since the Unix epoch.
type ReservationState struct {
	Charged  int64 // hits that the counter contains because of it
	Reported int64 // hits of which a commit that was not final said that they were used
	Mark     int64 // when the hits were reserved, or their places were taken again: it determines their window
	Expires  int64
	Keep     int64 // end of its storage, which leaves time for a late commit
}

// Bounds of reservations.
const (
	ReservationsOfOneID = 16              // reservations with the same ID, for clients that choose their IDs
	leastKeep           = 1 * time.Minute // how long a reservation is kept at least after it has expired
)

// Clamp shortens a reservation that lies too far in the future because a clock was set back: it then ends no later than
// one that is made at now for the rule's maximum time. past means that its expiry has been dealt with. Clamp reports
// whether the reservation has changed.
func (h *ReservationState) Clamp(l *descriptor.Limit, now int64, past bool) bool {
	b := l.Reservations
	if b == nil {
		implied := ReservationBounds(l)
		b = &implied
	}
	keep := max(b.MaxTTL, leastKeep).Microseconds()
	expires, ahead := now+b.MaxTTL.Microseconds(), h.Expires
	if past {
		expires, ahead = now, h.Keep-keep
	}
	if ahead <= expires+slack {
		return false
	}
	h.Expires = min(h.Expires, expires)
	h.Keep = min(h.Keep, h.Expires+keep)
	h.Mark = min(h.Mark, now)
	return true
}

// Due returns the time at which Expire has something to do.
func (h *ReservationState) Due(l *descriptor.Limit) int64 {
	if l.Reservations != nil && l.Reservations.Release && h.Charged > h.Reported {
		return h.Expires
	}
	return h.Keep
}

// Expire applies the events of a reservation that are due at now, and reports whether it is kept.
func (h *ReservationState) Expire(l *descriptor.Limit, s *State, now int64) (kept bool) {
	if now >= h.Expires && h.Due(l) == h.Expires {
		Adjust(l, s, now, h.Mark, h.Reported-h.Charged)
		h.Charged = h.Reported
	}
	return now < h.Keep
}

// Adjust adds delta hits to the window in which hits were added at the time mark, whether or not the limit allows them.
func Adjust(l *descriptor.Limit, s *State, now, mark, delta int64) {
	if delta != 0 {
		usage(l, s, now) // a state that lies too far in the future is moved first
		adjust(l, s, now, mark, delta)
	}
}

// adjust is Adjust for a state that does not lie too far in the future.
func adjust(l *descriptor.Limit, s *State, now, mark, delta int64) {
	if delta != 0 {
		algorithms[l.Algorithm].adjust(l, s, now, min(mark, now), delta)
	}
}

// ReservationBounds returns the bounds of the reservations under a limit.
func ReservationBounds(l *descriptor.Limit) descriptor.Reservations {
	if l.Reservations != nil {
		return *l.Reservations
	}
	b := descriptor.DefaultReservations()
	if l.Algorithm == descriptor.Concurrency { // a place is free after that time; the limit bounds their number
		b.TTL, b.MaxTTL = l.Window.Length(), l.Window.Length()
		b.MaxOutstanding = descriptor.MaxInFlight
	}
	return b
}

// Lasts is how long a reservation lasts from when it is made or extended, in microseconds.
func (h *Reservation) Lasts(l *descriptor.Limit) int64 {
	b := l.Reservations
	if b == nil {
		implied := ReservationBounds(l)
		b = &implied
	}
	ttl := h.TTL
	if ttl <= 0 {
		ttl = b.TTL.Microseconds()
	}
	return min(ttl, b.MaxTTL.Microseconds())
}

// lasts sets when a reservation that is made or extended at now expires. Nothing makes it expire earlier than before.
func (h *Reservation) lasts(l *descriptor.Limit, now int64) {
	r, ttl := &h.Stored, h.Lasts(l)
	r.Expires = max(r.Expires, now+ttl)
	r.Keep = max(r.Keep, r.Expires+max(ttl, leastKeep.Microseconds()))
	h.Expires = r.Expires
}

// extend postpones the end of a reservation. Its places are as if they were taken now: otherwise they would be free
// before it ends.
func (h *Reservation) extend(l *descriptor.Limit, s *State, now int64) {
	h.lasts(l, now)
	if r := &h.Stored; l.Algorithm == descriptor.Concurrency && now > r.Mark {
		Adjust(l, s, now, r.Mark, -r.Charged)
		algorithms[l.Algorithm].apply(l, s, now, r.Charged, commitAlways)
		r.Mark = now
	}
}

// settle carries out the reservation's operation on the state of its counter at now.
func (h *Reservation) settle(t *Take, s *State, now int64, c commit) Outcome {
	h.Result = ReservationDone
	switch h.Op {
	case OpReserve:
		return h.reserve(t, s, now, c)
	case OpCommit:
		return h.commit(t, s, now, c)
	default:
		before := usage(t.Limit, s, now)
		if !h.Stored.Found || now >= h.Stored.Expires {
			h.Result = ReservationUnknown
		} else if c.adds(true) {
			h.extend(t.Limit, s, now)
		}
		o := usage(t.Limit, s, now)
		o.Before = before.Used
		o.pass()
		return o
	}
}

// reserve takes hits if they fit. A take of a group is first only judged: Granted is then the number of hits that would
// fit.
func (h *Reservation) reserve(t *Take, s *State, now int64, c commit) Outcome {
	l, b := t.Limit, t.Limit.Reservations
	if b == nil {
		implied := ReservationBounds(l)
		b = &implied
	}
	deny := func(result ReservationResult, after time.Duration) Outcome {
		h.Result, h.Granted = result, 0
		o := usage(l, s, now)
		o.Allowed, o.RetryAfter = false, after
		return o
	}
	hits := t.Hits
	if most := b.Largest(l); hits > most {
		if h.Least <= 0 || h.Least > most {
			return deny(ReservationTooLarge, Never)
		}
		hits = most
	}
	if h.Stored.Outstanding >= b.MaxOutstanding || h.Stored.SameID >= ReservationsOfOneID {
		return deny(TooManyReservations, micros(max(1, h.Stored.FirstExpiry-now)))
	}
	if h.Granted > 0 && h.Granted < hits { // the number granted to the whole group
		hits = h.Granted
	}
	ahead := int64(0)
	if c == commitNever {
		ahead = s.ahead
	} else {
		c = commitAllowed
	}
	judged := algorithms[l.Algorithm].apply(l, s, now, hits+ahead, c)
	if room := int64(l.Capacity()) - judged.Before - ahead; !judged.Allowed && h.Least > 0 && room >= h.Least {
		hits = min(hits, room)
		judged = algorithms[l.Algorithm].apply(l, s, now, hits+ahead, c)
	}
	if !judged.Allowed {
		h.Granted = 0
		return judged
	}
	h.Granted = hits
	if c != commitNever {
		h.Stored.Found, h.Stored.ReservationState = true, ReservationState{Charged: hits, Mark: now}
		h.lasts(l, now)
	}
	return judged
}

// shareGrant makes all reservations of a group as large as the smallest one that is granted.
func shareGrant(takes []Take) {
	least := int64(0)
	for i := range takes {
		if h := takes[i].Reservation; h != nil && h.Op == OpReserve && h.Least > 0 && h.Granted > 0 &&
			(least == 0 || h.Granted < least) {
			least = h.Granted
		}
	}
	for i := range takes {
		if h := takes[i].Reservation; least > 0 && h != nil && h.Op == OpReserve && h.Least > 0 && h.Granted > 0 {
			h.Granted = least
		}
	}
}

// dropGrants leaves nothing granted to the reservations of a group that was denied.
func dropGrants(takes []Take) {
	for i := range takes {
		if h := takes[i].Reservation; h != nil && h.Op == OpReserve {
			h.Granted = 0
		}
	}
}

// commit charges the hits of a take for its reservation.
func (h *Reservation) commit(t *Take, s *State, now int64, c commit) Outcome {
	l, r := t.Limit, &h.Stored
	before := usage(l, s, now)
	h.Late = r.Found && now >= r.Expires
	switch {
	case !r.Found:
		h.Result = ReservationUnknown
		if h.Final && h.ChargeUnknown && c.adds(true) {
			adjust(l, s, now, now, t.Hits)
		}
	case c == commitNever:
	case h.Final:
		adjust(l, s, now, r.Mark, t.Hits-r.Charged)
		r.Found = false
	default:
		r.Reported = max(r.Reported, t.Hits)
		if more := r.Reported - r.Charged; more > 0 {
			adjust(l, s, now, r.Mark, more)
			r.Charged = r.Reported
		}
	}
	after := usage(l, s, now)
	after.Before = before.Used
	after.pass()
	return after
}

// pass turns the outcome of a read into the outcome of an operation that is never denied: a read is denied while more
// is used than the limit allows.
func (o *Outcome) pass() { o.Allowed, o.RetryAfter = true, 0 }

// usage is the outcome of a take that only reads.
func usage(l *descriptor.Limit, s *State, now int64) Outcome {
	return algorithms[l.Algorithm].apply(l, s, now, 0, commitNever)
}
