package limiter

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A reservation sets hits aside under the limits of a descriptor until a commit reports how many were used. Either the
// request names a reservation, and all of its descriptors are an operation on it; or single descriptors name one by
// their last entry.

// matchNamed looks for a rule that lets the last entry name a reservation. That entry is then not part of the
// descriptor.
func (w *work) matchNamed(s *subject) {
	if s.matched = w.domain.MatchNamed(s.sent); s.matched == nil {
		return
	}
	last := len(s.sent) - 1
	if s.sent[last].Key == descriptor.CommitID {
		s.hits = max(s.hits, 0)
	}
	s.sent, s.namesReservation = s.sent[:last], true
	w.needs |= needNamed
}

// applyReservation makes every descriptor that has a limit an operation on the request's reservation.
func (w *work) applyReservation() error {
	h := w.req.Reservation
	w.needs |= needReservation
	for i := range w.subjects {
		s := &w.subjects[i]
		if s.rule == nil && s.by != byRequest || s.unlimited() {
			continue
		}
		if !s.reservable() {
			switch {
			case w.req.Purpose != Settled:
				e := &NotReservableError{Descriptor: i}
				if s.rule != nil {
					e.Rule = s.rule.Path
				}
				return e
			case s.countsAll():
				continue
			}
		}
		s.hits, s.reservation = max(s.hits, 0), h
	}
	if h.Op == backend.OpReserve && h.Least > 0 {
		if err := w.sameHits(); err != nil {
			return err
		}
	}
	return h.Unready
}

// sameHits checks that all descriptors reserve the same number of hits, at the same cost: stores grant all of them the
// same number. Two kinds of descriptors are exempt: under concurrency limits any number is one place, and limits in
// shadow mode do not make a reservation smaller.
func (w *work) sameHits() error {
	first := none
	for i := range w.subjects {
		s := &w.subjects[i]
		if s.reservation == nil || s.shadow() || !slices.ContainsFunc(s.rule.Limits,
			func(l descriptor.Limit) bool { return l.Algorithm != descriptor.Concurrency }) {
			continue
		}
		if first < 0 {
			first = i
		}
		f := &w.subjects[first]
		if one, other := f.hitCost(), s.hitCost(); one != other {
			return invalid("min_hits",
				"min_hits: a hit of descriptors[%d] costs %d, and one of descriptors[%d] costs %d: with min_hits all descriptors "+
					"need the same cost",
				first, one, i, other)
		}
		if s.hits != f.hits {
			return invalid("min_hits",
				"min_hits: descriptors[%d] is worth %d hits, and descriptors[%d] is worth %d: with min_hits all descriptors need "+
					"the same amount",
				first, f.hits, i, s.hits)
		}
	}
	return nil
}

// applyNamedReservations makes the descriptors whose last entry names a reservation an operation on it.
func (w *work) applyNamedReservations() {
	w.namedReservations = slices.Grow(w.namedReservations, len(w.subjects)) // subject.reservation points into it
	for i := range w.subjects {
		s := &w.subjects[i]
		if !s.namesReservation || s.rule == nil && s.by != byRequest || s.unlimited() || s.hits < 0 {
			continue
		}
		last := &w.req.Descriptors[i].Entries[len(s.sent)]
		h := Reservation{Op: backend.OpReserve, ID: w.idOf(last.Value)}
		if last.Key == descriptor.CommitID {
			h = Reservation{Op: backend.OpCommit, ID: h.ID, Final: true, ChargeUnknown: true}
		}
		w.namedReservations = append(w.namedReservations, h)
		s.reservation = &w.namedReservations[len(w.namedReservations)-1]
		w.needs |= needReservation
	}
}

// idOf returns the ID of a reservation that a client names. A name that does not fit into an ID is hashed, because
// names may have any length. A client that crafts a colliding name gains nothing: it could have sent the other name.
func (w *work) idOf(name string) (id backend.ReservationID) {
	switch {
	case len(name) < len(id):
		id[copy(id[:], name)] = byte(len(name))
		return id
	case uuid(&id, name):
		return id
	}
	w.scratch = append(w.scratch[:0], name...)
	sum := sha256.Sum256(w.scratch)
	copy(id[:], sum[:])
	return id
}

// uuid reads a UUID in lower case, as Envoy writes request IDs.
func uuid(id *backend.ReservationID, name string) bool {
	if len(name) != 36 || name[8] != '-' || name[13] != '-' || name[18] != '-' || name[23] != '-' ||
		strings.ToLower(name) != name {
		return false
	}
	var digits [2 * len(*id)]byte
	n := copy(digits[:], name[:8])
	n += copy(digits[n:], name[9:13])
	n += copy(digits[n:], name[14:18])
	n += copy(digits[n:], name[19:23])
	copy(digits[n:], name[24:])
	_, err := hex.Decode(id[:], digits[:])
	return err == nil
}

// reservable reports whether all limits of a descriptor allow reservations.
func (s *subject) reservable() bool {
	return s.rule != nil && !slices.ContainsFunc(s.rule.Limits, func(l descriptor.Limit) bool { return !l.Reservable() })
}

// countsAll reports whether plain takes can count hits that do not fit. Of several limits, one that denies hits keeps
// the others from counting them.
func (s *subject) countsAll() bool {
	return s.by == byRequest || s.by == byBlock || s.end-s.first == 1 &&
		s.rule.Limits[0].Has(descriptor.SettingCountDenied)
}

// changesReservation reports whether a descriptor changes an earlier reservation.
func (s *subject) changesReservation() bool {
	return s.reservation != nil && s.reservation.Op != backend.OpReserve
}

// alreadyDecided reports whether the hits of a descriptor were decided when they were reserved.
func (w *work) alreadyDecided(s *subject) bool {
	return s.changesReservation() && w.req.Purpose != Settled
}

// sameReservation reports whether two descriptors are an operation on the same reservation.
func (s *subject) sameReservation(other *subject) bool {
	return s.reservation == other.reservation || s.reservation.ID == other.reservation.ID &&
		s.reservation.Op == other.reservation.Op
}

// growReservations reserves capacity for the reservations of a request's takes: takes point into the slice, so it must
// not be reallocated afterwards.
func (w *work) growReservations() {
	n := 0
	for i := range w.subjects {
		if s := &w.subjects[i]; s.reservation != nil {
			n += s.end - s.first
		}
	}
	w.reservations = slices.Grow(w.reservations, n)
}

// setReservation makes a take an operation on its descriptor's reservation, or leaves its hits out if they were decided
// earlier.
func (w *work) setReservation(t *backend.Take, s *subject, c *charge) {
	switch {
	case s.reservation != nil && (c.limit.Reservable() || w.req.Purpose == Settled):
		if c.limit.Algorithm == descriptor.Concurrency {
			t.Hits = places(s.reservation.Op)
		}
		t.Reservation = w.newReservation(s, t, !s.shadow() && !s.observedOnly(c))
		t.CountDenied = false
	case s.changesReservation():
		t.Hits = 0 // this limit counted them before
	}
}

// newReservation returns the part of a descriptor's take that concerns its reservation.
//
// A limit that is not enforced must not make the reservations under other limits smaller. Where it would have denied a
// reservation it reserves nothing, and a commit charges nothing there: if it were enforced, these hits would not have
// passed.
func (w *work) newReservation(s *subject, t *backend.Take, enforced bool) *backend.Reservation {
	h := s.reservation
	id := h.ID
	if h == w.req.Reservation {
		id[len(id)-1] ^= byte(t.Member)
		id[len(id)-2] ^= byte(t.Member >> 8)
	}
	least := int64(0)
	if cost := s.hitCost(); enforced && h.Least < uint64(t.Hits)/cost {
		least = int64(h.Least * cost)
	}
	w.reservations = append(w.reservations, backend.Reservation{
		ID: id, Op: h.Op, TTL: h.TTL.Microseconds(), Least: least, Final: h.Final,
		ChargeUnknown: h.ChargeUnknown && (enforced || w.req.Purpose == Settled),
	})
	return &w.reservations[len(w.reservations)-1]
}

// places returns the hits of an operation on a reservation under a concurrency limit. They do not depend on its amount:
// a reservation takes one place, and its end gives that place back.
func places(op backend.ReservationOp) int64 {
	if op == backend.OpReserve {
		return 1
	}
	return 0
}

// reservationOutcomes sets the result of the request's reservation under each descriptor. If fewer hits were reserved
// than a descriptor asked for, the reserved hits count. Reservations named by an entry are all or nothing.
func (w *work) reservationOutcomes(d *Decision) {
	for i := range w.subjects {
		s := &w.subjects[i]
		var all ReservationOutcome
		for c, h := range w.reservationsOf(s) {
			all.add(w.reservationOutcome(s, c, h), h.Op)
		}
		if s.reservation != nil && s.reservation.Op == backend.OpReserve && all.Some && all.Reserved < s.hits &&
			all.Reserved > 0 {
			s.admitted = all.Reserved
		}
		all.Reserved /= int64(s.hitCost())
		d.Reservations = append(d.Reservations, all)
	}
}

// reservationsOf yields the charges of a descriptor that are an operation on a reservation, and that the store has
// answered.
func (w *work) reservationsOf(s *subject) iter.Seq2[*charge, *backend.Reservation] {
	return func(yield func(*charge, *backend.Reservation) bool) {
		for _, c := range w.binding(s) {
			if h := w.request.Takes[c.take].Reservation; h != nil && !w.outcome(c).Failed && !yield(c, h) {
				return
			}
		}
	}
}

// reservationOutcome returns the result of a reservation under one limit.
func (w *work) reservationOutcome(s *subject, c *charge, h *backend.Reservation) ReservationOutcome {
	one := ReservationOutcome{Some: true, Result: h.Result, Expires: instant(h.Expires)}
	switch {
	case h.Op != backend.OpReserve || h.Expires == 0: // it was only judged, and the group was denied
	case w.request.Takes[c.take].Limit.Algorithm == descriptor.Concurrency && h.Granted > 0:
		one.Reserved = s.hits // a place, for a reservation of any amount
	default:
		one.Reserved = min(h.Granted/w.joining.membersOf(c.take), s.hits)
	}
	return one
}

func instant(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

// add merges the result of the reservation under one more limit of a descriptor.
func (a *ReservationOutcome) add(one ReservationOutcome, op backend.ReservationOp) {
	switch {
	case !a.Some:
		*a = one
		return
	case op == backend.OpReserve:
		a.Result = max(a.Result, one.Result)
		a.Reserved = min(a.Reserved, one.Reserved)
	default:
		a.Result = min(a.Result, one.Result) // done under any limit is done
	}
	if !one.Expires.IsZero() && (a.Expires.IsZero() || one.Expires.Before(a.Expires)) {
		a.Expires = one.Expires
	}
}

// countReservations counts the operations on a request's reservations: one for each kind and result.
func (w *work) countReservations(d *Decision) {
	if w.needs&needReservation == 0 {
		return
	}
	seen := uint(0)
	for i := range w.subjects {
		s := &w.subjects[i]
		for c, h := range w.reservationsOf(s) {
			result := resultOf(h, max(w.request.Takes[c.take].Hits, s.admitted), d.Code)
			seen |= 1 << result
			if result == reservationCommitted && h.Late {
				seen |= 1 << reservationLate
			}
		}
	}
	if seen&(1<<reservationTooMany|1<<reservationTooLarge) != 0 {
		seen &^= 1 << reservationDenied
	}
	if seen&(1<<reservationCommitted) != 0 {
		seen &^= 1 << reservationCancelled // one of several descriptors used nothing
	}
	if seen&(1<<reservationCommitted|1<<reservationCancelled|1<<reservationProgress|1<<reservationExtended) != 0 {
		seen &^= 1 << reservationUnknown
	}
	for ; seen != 0; seen &= seen - 1 {
		w.metrics.reservations[bits.TrailingZeros(seen)].Add(1)
	}
}

func resultOf(h *backend.Reservation, hits int64, code Code) int {
	switch {
	case h.Result == backend.TooManyReservations:
		return reservationTooMany
	case h.Result == backend.ReservationTooLarge:
		return reservationTooLarge
	case h.Result == backend.ReservationUnknown:
		return reservationUnknown
	case h.Op == backend.OpReserve && code == OverLimit:
		return reservationDenied
	case h.Op == backend.OpReserve:
		return reservationReserved
	case h.Op == backend.OpExtend:
		return reservationExtended
	case !h.Final:
		return reservationProgress
	case hits == 0:
		return reservationCancelled
	default:
		return reservationCommitted
	}
}
