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

// A reservation holds hits under the limits of a descriptor until a commit says how many were used. All descriptors of a request are a
// step of the reservation that the request names, or single descriptors of the one that their last entry names.

// matchNamed looks for a rule that lets the last entry name a reservation. That entry is then no part of the descriptor.
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

// holdAll makes every descriptor that has a limit a step of the request's reservation.
func (w *work) holdAll() error {
	h := w.req.Hold
	w.needs |= needHold
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
		s.hits, s.hold = max(s.hits, 0), h
	}
	if h.Op == backend.HoldReserve && h.Least > 0 {
		if err := w.sameHits(); err != nil {
			return err
		}
	}
	return h.Unready
}

// sameHits checks that all descriptors reserve the same number of hits, at the same cost: stores grant all of them the same number.
// Under a limit of requests in flight any number is one place, and what is not enforced does not make a reservation smaller.
func (w *work) sameHits() error {
	first := none
	for i := range w.subjects {
		s := &w.subjects[i]
		if s.hold == nil || s.shadow() || !slices.ContainsFunc(s.rule.Limits, func(l descriptor.Limit) bool { return l.Algorithm != descriptor.Concurrency }) {
			continue
		}
		if first < 0 {
			first = i
		}
		f := &w.subjects[first]
		if one, other := f.hitCost(), s.hitCost(); one != other {
			return invalid("min_hits", "min_hits: a hit of descriptors[%d] costs %d, and one of descriptors[%d] costs %d: with min_hits all descriptors need the same cost",
				first, one, i, other)
		}
		if s.hits != f.hits {
			return invalid("min_hits", "min_hits: descriptors[%d] is worth %d hits, and descriptors[%d] is worth %d: with min_hits all descriptors need the same amount",
				first, f.hits, i, s.hits)
		}
	}
	return nil
}

// holdNamed makes the descriptors whose last entry names a reservation a step of it.
func (w *work) holdNamed() {
	w.entryHolds = slices.Grow(w.entryHolds, len(w.subjects)) // subject.hold points into it
	for i := range w.subjects {
		s := &w.subjects[i]
		if !s.namesReservation || s.rule == nil && s.by != byRequest || s.unlimited() || s.hits < 0 {
			continue
		}
		last := &w.req.Descriptors[i].Entries[len(s.sent)]
		h := Hold{Op: backend.HoldReserve, ID: w.idOf(last.Value)}
		if last.Key == descriptor.CommitID {
			h = Hold{Op: backend.HoldCommit, ID: h.ID, Final: true, ChargeUnknown: true}
		}
		if s.by == byRequest {
			w.charges[s.first].limit.Reservations = s.matched.Limits[0].Reservations
		}
		w.entryHolds = append(w.entryHolds, h)
		s.hold = &w.entryHolds[len(w.entryHolds)-1]
		w.needs |= needHold
	}
}

// idOf returns the ID of a reservation that a caller names. A name that does not fit into an ID is hashed, because names may
// have any length. A caller that crafts a colliding
// name gains nothing: it could have sent the other name.
func (w *work) idOf(name string) (id backend.HoldID) {
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
func uuid(id *backend.HoldID, name string) bool {
	if len(name) != 36 || name[8] != '-' || name[13] != '-' || name[18] != '-' || name[23] != '-' || strings.ToLower(name) != name {
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

// countsAll reports whether plain takes can count hits that do not fit. Of several limits, one that refuses hits keeps the others
// from counting them.
func (s *subject) countsAll() bool {
	return s.by == byRequest || s.by == byBlock || len(s.rule.Limits) == 1 && s.rule.Limits[0].Has(descriptor.SettingCountDenied)
}

// changesReservation reports whether a descriptor changes an earlier reservation.
func (s *subject) changesReservation() bool { return s.hold != nil && s.hold.Op != backend.HoldReserve }

// alreadyDecided reports whether the hits of a descriptor were decided when they were reserved.
func (w *work) alreadyDecided(s *subject) bool {
	return s.changesReservation() && w.req.Purpose != Settled
}

// sameHold reports whether two descriptors are a step of the same reservation.
func (s *subject) sameHold(other *subject) bool {
	return s.hold == other.hold || s.hold.ID == other.hold.ID && s.hold.Op == other.hold.Op
}

// growHolds makes room for what the takes of a request need for their reservations, so that it does not move while takes point to it.
func (w *work) growHolds() {
	n := 0
	for i := range w.subjects {
		if s := &w.subjects[i]; s.hold != nil {
			n += s.end - s.first
		}
	}
	w.holds = slices.Grow(w.holds, n)
}

// holdTake makes a take a step of its descriptor's reservation, or leaves its hits out if they were decided earlier.
func (w *work) holdTake(t *backend.Take, s *subject, c *charge) {
	switch {
	case s.hold != nil && (c.limit.Reservable() || w.req.Purpose == Settled):
		if c.limit.Algorithm == descriptor.Concurrency {
			t.Hits = places(s.hold.Op)
		}
		t.Hold = w.newHold(s, t, !s.shadow() && !s.observedOnly(c))
		t.CountDenied = false
	case s.changesReservation():
		t.Hits = 0 // this limit counted them before
	}
}

// newHold returns the part of a descriptor's take that concerns its reservation.
//
// A limit that is not enforced must not make the reservations under other limits smaller. Where it would have refused a reservation it holds
// nothing, and a commit charges nothing there: if it were enforced, these hits would not have passed.
func (w *work) newHold(s *subject, t *backend.Take, enforced bool) *backend.Hold {
	h := s.hold
	id := h.ID
	if h == w.req.Hold {
		id[len(id)-1] ^= byte(t.Member)
		id[len(id)-2] ^= byte(t.Member >> 8)
	}
	least := int64(0)
	if cost := s.hitCost(); enforced && h.Least < uint64(t.Hits)/cost {
		least = int64(h.Least * cost)
	}
	w.holds = append(w.holds, backend.Hold{
		ID: id, Op: h.Op, TTL: h.TTL.Microseconds(), Least: least, Final: h.Final,
		ChargeUnknown: h.ChargeUnknown && (enforced || w.req.Purpose == Settled),
	})
	return &w.holds[len(w.holds)-1]
}

// places returns the hits of a step of a reservation under a concurrency limit, whatever its amount is: a reservation takes one
// place, and its end gives that place back.
func places(op backend.HoldOp) int64 {
	if op == backend.HoldReserve {
		return 1
	}
	return 0
}

// holdOutcomes fills in what became of the request's reservation under each descriptor. If fewer hits were reserved than the descriptor
// asked for, these are the ones that count. Reservations that an entry names are all or nothing.
func (w *work) holdOutcomes(d *Decision) {
	for i := range w.subjects {
		s := &w.subjects[i]
		var all HoldOutcome
		for c, h := range w.holdsOf(s) {
			all.add(w.holdOutcome(s, c, h), h.Op)
		}
		if s.hold != nil && s.hold.Op == backend.HoldReserve && all.Some && all.Reserved < s.hits && all.Reserved > 0 {
			s.admitted = all.Reserved
		}
		all.Reserved /= int64(s.hitCost())
		d.Holds = append(d.Holds, all)
	}
}

// holdsOf yields the charges of a descriptor that are a step of a reservation, and that the store has answered.
func (w *work) holdsOf(s *subject) iter.Seq2[*charge, *backend.Hold] {
	return func(yield func(*charge, *backend.Hold) bool) {
		for _, c := range w.binding(s) {
			if h := w.request.Takes[c.take].Hold; h != nil && !w.outcome(c).Failed && !yield(c, h) {
				return
			}
		}
	}
}

// holdOutcome returns what became of a reservation under one limit.
func (w *work) holdOutcome(s *subject, c *charge, h *backend.Hold) HoldOutcome {
	one := HoldOutcome{Some: true, Result: h.Result, Expires: instant(h.Expires)}
	switch {
	case h.Op != backend.HoldReserve || h.Expires == 0: // it was only judged, and the group was refused
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

// add adds what became of the reservation under one more limit of a descriptor.
func (a *HoldOutcome) add(one HoldOutcome, op backend.HoldOp) {
	switch {
	case !a.Some:
		*a = one
		return
	case op == backend.HoldReserve:
		a.Result = max(a.Result, one.Result)
		a.Reserved = min(a.Reserved, one.Reserved)
	default:
		a.Result = min(a.Result, one.Result) // done under any limit is done
	}
	if !one.Expires.IsZero() && (a.Expires.IsZero() || one.Expires.Before(a.Expires)) {
		a.Expires = one.Expires
	}
}

// countHolds counts the steps of a request's reservations: one for each operation and result.
func (w *work) countHolds(d *Decision) {
	if w.needs&needHold == 0 {
		return
	}
	seen := uint(0)
	for i := range w.subjects {
		s := &w.subjects[i]
		for c, h := range w.holdsOf(s) {
			result := resultOf(h, max(w.request.Takes[c.take].Hits, s.admitted), d.Code)
			seen |= 1 << result
			if result == holdCommitted && h.Late {
				seen |= 1 << holdLate
			}
		}
	}
	if seen&(1<<holdTooMany|1<<holdTooLarge) != 0 {
		seen &^= 1 << holdRefused
	}
	if seen&(1<<holdCommitted) != 0 {
		seen &^= 1 << holdCancelled // one of several descriptors used nothing
	}
	if seen&(1<<holdCommitted|1<<holdCancelled|1<<holdProgress|1<<holdExtended) != 0 {
		seen &^= 1 << holdUnknown
	}
	for ; seen != 0; seen &= seen - 1 {
		w.metrics.holds[bits.TrailingZeros(seen)].Add(1)
	}
}

func resultOf(h *backend.Hold, hits int64, code Code) int {
	switch {
	case h.Result == backend.HoldTooMany:
		return holdTooMany
	case h.Result == backend.HoldTooLarge:
		return holdTooLarge
	case h.Result == backend.HoldUnknown:
		return holdUnknown
	case h.Op == backend.HoldReserve && code == OverLimit:
		return holdRefused
	case h.Op == backend.HoldReserve:
		return holdReserved
	case h.Op == backend.HoldExtend:
		return holdExtended
	case !h.Final:
		return holdProgress
	case hits == 0:
		return holdCancelled
	default:
		return holdCommitted
	}
}
