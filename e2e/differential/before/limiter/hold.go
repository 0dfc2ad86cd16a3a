package limiter

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Hold makes a request, or one of its descriptors, a step of a reservation.
type Hold struct {
	Op backend.HoldOp

	// ID is the reservation among those of each counter. The ID of a request is varied for each of its descriptors, so that
	// two of them that share a counter do not meet.
	ID backend.HoldID

	TTL   time.Duration // reserve, extend: how long it lasts; 0: what the rule says
	Least uint64        // reserve: descriptors that ask for more hits accept so many, if no more fit; 0: all or nothing
	Final bool          // commit: the reservation ends

	// Unready is why no reservation can be made now. A request that the rules allow fails with it. Nil: it can.
	Unready error

	// ChargeUnknown charges the hits of a commit for which nothing is reserved, whether or not they fit.
	ChargeUnknown bool
}

// HoldID identifies a reservation.
type HoldID = backend.HoldID

// HoldOp is what a step of a reservation does.
type HoldOp = backend.HoldOp

// HoldResult is what became of a step.
type HoldResult = backend.HoldResult

// The steps, and the result of one that did what it should.
const (
	Reserve  = backend.HoldReserve
	Commit   = backend.HoldCommit
	Extend   = backend.HoldExtend
	HoldDone = backend.HoldDone
)

// Purpose is what a request wants besides a decision.
type Purpose uint8

// The purposes.
const (
	Count Purpose = iota // its hits are counted
	Look                 // it only learns what would be decided

	Charge // its hits have passed already: they are counted whether or not they fit
)

// HoldOutcome is what became of a reservation under one descriptor.
type HoldOutcome struct {
	Some     bool // the descriptor has limits; else the other fields are zero
	Result   backend.HoldResult
	Reserved int64     // reserve: hits that are held under each limit of the descriptor, before they are multiplied by their cost
	Expires  time.Time // reserve, extend: by the clock of the store
}

// NotReservableError reports a descriptor whose rule allows no reservations.
type NotReservableError struct {
	Descriptor int    // its index
	Rule       string // empty: the limit is one that the request brings along
}

// Error implements error.
func (e *NotReservableError) Error() string {
	if e.Rule == "" {
		return fmt.Sprintf("descriptors[%d]: hits of a limit that a request brings along cannot be reserved", e.Descriptor)
	}
	return fmt.Sprintf("descriptors[%d]: the rule %s allows no reservations: set reservations in the rule", e.Descriptor, e.Rule)
}

// hold makes every descriptor that has a limit a step of the request's reservation.
func (c *calculation) hold() error {
	h := c.req.Hold
	c.holding = true
	for i := range c.resolved {
		r := &c.resolved[i]
		if r.rule == nil && !r.ownLimit || r.unlimited() {
			continue
		}
		if !r.reservable() {
			switch {
			case c.req.Purpose != Charge:
				e := &NotReservableError{Descriptor: i}
				if r.rule != nil {
					e.Rule = r.rule.Path
				}
				return e
			case r.countsAll():
				continue
			}
		}
		r.hits = max(r.hits, 0)
		c.holdWith(i, h)
	}
	if h.Op == backend.HoldReserve && h.Least > 0 {
		if err := c.sameHits(); err != nil {
			return err
		}
	}
	return h.Unready
}

// sameHits checks that all descriptors reserve the same number of hits, at the same cost: stores grant all of them the same number.
// Under a limit of requests in flight any number is one place, and what is not enforced does not make a reservation smaller.
func (c *calculation) sameHits() error {
	first := -1
	for i := range c.resolved {
		r := &c.resolved[i]
		if r.hold == nil || r.shadow() || !slices.ContainsFunc(r.rule.Limits, func(l descriptor.Limit) bool { return l.Algorithm != descriptor.Concurrency }) {
			continue
		}
		if first < 0 {
			first = i
		}
		if one, other := c.hitCost(first), c.hitCost(i); one != other {
			return invalid("min_hits", "min_hits: a hit of descriptors[%d] costs %d, and one of descriptors[%d] costs %d: with min_hits all descriptors need the same cost",
				first, one, i, other)
		}
		if one := c.resolved[first].hits; r.hits != one {
			return invalid("min_hits", "min_hits: descriptors[%d] is worth %d hits, and descriptors[%d] is worth %d: with min_hits all descriptors need the same amount",
				first, one, i, r.hits)
		}
	}
	return nil
}

// holdWith makes descriptor i a step of a reservation. Its rule must allow reservations.
func (c *calculation) holdWith(i int, h *Hold) {
	c.resolved[i].hold = h
	c.holding = true
}

// holdNamed makes the descriptors whose last entry names a reservation a step of it.
func (c *calculation) holdNamed() {
	c.named = slices.Grow(c.named[:0], len(c.resolved)) // resolved.hold points into it
	for i := range c.resolved {
		r := &c.resolved[i]
		if r.names == nil || r.rule == nil && !r.ownLimit || r.unlimited() || r.hits < 0 {
			continue
		}
		entries := c.req.Descriptors[i].Entries
		last := &entries[len(entries)-1]
		h := Hold{Op: backend.HoldReserve, ID: c.idOf(last.Value)}
		if last.Key == descriptor.CommitID {
			h = Hold{Op: backend.HoldCommit, ID: h.ID, Final: true, ChargeUnknown: true}
		}
		if r.ownLimit {
			r.limit.Reservations = r.names.Limits[0].Reservations
		}
		c.named = append(c.named, h)
		c.holdWith(i, &c.named[len(c.named)-1])
	}
}

// idOf returns the ID of a reservation that a caller names. Names of other forms than those that fit are hashed, because names may
// have any length. Who chooses a name so that its ID is that of another one gets what the other name itself would give.
func (c *calculation) idOf(name string) (id backend.HoldID) {
	switch {
	case len(name) < len(id):
		id[copy(id[:], name)] = byte(len(name))
		return id
	case uuid(&id, name):
		return id
	}
	c.identity = append(c.identity[:0], name...)
	sum := sha256.Sum256(c.identity)
	copy(id[:], sum[:])
	return id
}

// uuid reads a UUID in lower case, as Envoy writes those of requests.
func uuid(id *backend.HoldID, name string) bool {
	if len(name) != 36 || name[8] != '-' || name[13] != '-' || name[18] != '-' || name[23] != '-' {
		return false
	}
	bad := byte(0)
	for i, at := range [...]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34} {
		high, low := hexDigits[name[at]], hexDigits[name[at+1]]
		bad |= high | low
		id[i] = high<<4 | low
	}
	return bad < 16
}

// hexDigits are the values of digits in lower case; 0x80: the byte is none.
var hexDigits = func() (values [256]byte) {
	for i := range values {
		values[i] = 0x80
	}
	for value, digit := range []byte("0123456789abcdef") {
		values[digit] = byte(value)
	}
	return values
}()

// entries returns the entries of descriptor i, without one that names a reservation, and with the values that count.
func (c *calculation) entries(i int) []descriptor.Entry {
	if counted := c.resolved[i].counted; counted != nil {
		return counted
	}
	return c.sent(i)
}

// sent returns the entries of descriptor i as they were sent, without one that names a reservation.
func (c *calculation) sent(i int) []descriptor.Entry {
	entries := c.req.Descriptors[i].Entries
	if c.resolved[i].names != nil {
		return entries[:len(entries)-1]
	}
	return entries
}

// sameHold reports whether two descriptors are a step of the same reservation.
func (c *calculation) sameHold(i, j int) bool {
	a, b := c.resolved[i].hold, c.resolved[j].hold
	return a == b || a.ID == b.ID && a.Op == b.Op
}

// reservable reports whether all limits of a descriptor allow reservations.
func (r *resolved) reservable() bool {
	return r.rule != nil && !slices.ContainsFunc(r.rule.Limits, func(l descriptor.Limit) bool { return !l.Reservable() })
}

// countsAll reports whether plain takes can count hits that do not fit. Of several limits, one that refuses hits keeps the others
// from counting them.
func (r *resolved) countsAll() bool {
	return r.ownLimit || r.own.blocked || len(r.rule.Limits) == 1 && r.rule.Limits[0].Has(descriptor.SettingCountDenied)
}

// units adds what amounts of several kinds are worth under the rule of a descriptor to its hits.
func (c *calculation) units() error {
	for i := range c.resolved {
		r, d := &c.resolved[i], &c.req.Descriptors[i]
		if len(d.Amounts) == 0 {
			continue
		}
		var cost descriptor.Cost
		if r.rule != nil {
			cost = r.rule.Cost()
		}
		hits, unknown, ok := cost.Hits(d.Amounts)
		if !ok {
			field := fmt.Sprintf("descriptors[%d].amount", i)
			return invalid(field, "%s: the cost of the rule %s has no weight for %q; it has weights for %s", field, r.rule.Path, unknown, cost.Names())
		}
		more := int64(min(hits, backend.MaxHits))
		if r.rule != nil && r.rule.HitCost() != nil {
			more = r.rule.HitCost().Hits(c.sent(i), more)
		}
		r.hits = min(max(r.hits, 0)+more, backend.MaxHits)
	}
	return nil
}

// hitCost returns what one hit of a descriptor counts for.
func (c *calculation) hitCost(i int) uint64 {
	if rule := c.resolved[i].rule; rule != nil {
		return rule.HitCostOf(c.sent(i))
	}
	return 1
}

// makeHolds makes room for what the takes of a request need for their reservations, so that it does not move while takes point to it.
func (c *calculation) makeHolds() {
	n := 0
	for i := range c.resolved {
		switch r := &c.resolved[i]; {
		case r.hold == nil:
		case r.ownLimit:
			n++
		default:
			n += len(r.rule.Limits)
		}
	}
	c.holds = slices.Grow(c.holds[:0], n)
}

// newHold returns the part of a descriptor's take that concerns its reservation.
//
// A limit that is not enforced must not make the reservations beside it smaller. Where it would have refused a reservation it holds
// nothing, and a commit charges nothing there: if it were enforced, these hits would not have passed.
func (c *calculation) newHold(h *Hold, member int, hits int64, enforced bool) *backend.Hold {
	id := h.ID
	if h == c.req.Hold {
		id[len(id)-1] ^= byte(member)
		id[len(id)-2] ^= byte(member >> 8)
	}
	least := int64(0)
	if cost := c.hitCost(member); enforced && h.Least < uint64(hits)/cost {
		least = int64(h.Least * cost)
	}
	c.holds = append(c.holds, backend.Hold{
		ID: id, Op: h.Op, TTL: h.TTL.Microseconds(), Least: least, Final: h.Final,
		ChargeUnknown: h.ChargeUnknown && (enforced || c.req.Purpose == Charge),
	})
	return &c.holds[len(c.holds)-1]
}

// places returns the hits of a step of a reservation under a concurrency limit, whatever its amount is: a reservation takes one
// place, and its end gives that place back.
func places(op backend.HoldOp) int64 {
	if op == backend.HoldReserve {
		return 1
	}
	return 0
}

// settlesEarlier reports whether a descriptor changes an earlier reservation: its hits were decided when they were reserved.
func (r *resolved) settlesEarlier() bool { return r.hold != nil && r.hold.Op != backend.HoldReserve }

// counted reports whether the hits of a take have to be counted as those of a request.
func (c *calculation) counted(t *backend.Take) bool {
	return c.req.Purpose == Charge || c.req.Purpose == Count && (t.Hold == nil || t.Hold.Op == backend.HoldReserve)
}

// held fills in what became of the reservation under each descriptor, and counts it.
func (l *Limiter) held(c *calculation, d *Decision) {
	if c.req.Hold != nil {
		c.heldOfRequest(d)
	}
	if !l.unmeasured {
		l.countHolds(c, d.Code)
	}
}

// heldOfRequest fills in what became of the request's reservation under each descriptor. Reservations that an entry names are all
// or nothing.
func (c *calculation) heldOfRequest(d *Decision) {
	for i := range c.resolved {
		r := &c.resolved[i]
		var all HoldOutcome
		for j := r.first; j < r.end; j++ {
			t := c.index[j]
			h := c.request.Takes[t].Hold
			if h == nil || c.request.Outcomes[t].Failed || r.passes(j) {
				continue
			}
			one := HoldOutcome{Some: true, Result: h.Result, Expires: instant(h.Expires)}
			if h.Op == backend.HoldReserve && h.Expires != 0 { // else it was only judged, and the group was refused
				one.Reserved = min(h.Granted/c.sharersOf(t), r.hits)
				if c.request.Takes[t].Limit.Algorithm == descriptor.Concurrency && h.Granted > 0 {
					one.Reserved = r.hits // a place, for a reservation of any amount
				}
			}
			all.add(one, h.Op)
		}
		if r.hold != nil && r.hold.Op == backend.HoldReserve && all.Some && all.Reserved < r.hits && all.Reserved > 0 {
			r.hits = all.Reserved // so many are counted
		}
		all.Reserved /= int64(c.hitCost(i))
		d.Holds = append(d.Holds, all)
	}
}

// countSharer counts one more descriptor whose reservation is a part of take t, if it may get less than it asks for.
func (c *calculation) countSharer(t int) {
	if c.req.Hold == nil || c.req.Hold.Least == 0 {
		return
	}
	for len(c.sharers) <= t {
		c.sharers = append(c.sharers, 0)
	}
	c.sharers[t]++
}

// sharersOf returns the number of descriptors that get equal parts of what take t is granted.
func (c *calculation) sharersOf(t int) int64 {
	if t < len(c.sharers) {
		return c.sharers[t]
	}
	return 1
}

// grantEqually makes a reservation all or nothing if some takes are for more descriptors than others: stores grant each take the
// same number of hits, which would then be another number for each descriptor.
func (c *calculation) grantEqually() {
	equal, parts := true, int64(0)
	for t := range c.sharers {
		if h := c.request.Takes[t].Hold; h != nil && h.Least > 0 {
			equal = equal && (parts == 0 || parts == c.sharers[t])
			parts = c.sharers[t]
		}
	}
	for t := range c.sharers {
		if h := c.request.Takes[t].Hold; h != nil && !equal {
			h.Least = 0
		}
	}
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

// The results of reservations in metrics.
const (
	holdReserved = iota
	holdRefused
	holdTooMany
	holdTooLarge
	holdCommitted
	holdProgress
	holdCancelled
	holdExtended
	holdUnknown
	holdLate
	holdResults
)

var holdNames = [holdResults]string{"reserved", "refused", "too_many", "too_large", "committed", "progress", "cancelled", "extended", "unknown", "late"}

// countHolds counts the steps of a request's reservations: one for each operation and result.
func (l *Limiter) countHolds(c *calculation, code Code) {
	seen := uint(0)
	for i := range c.resolved {
		r := &c.resolved[i]
		for j := r.first; j < r.end; j++ {
			t := c.index[j]
			if h := c.request.Takes[t].Hold; h != nil && !c.request.Outcomes[t].Failed && !r.passes(j) {
				result := resultOf(h, max(c.request.Takes[t].Hits, r.hits), code)
				seen |= 1 << result
				if result == holdCommitted && h.Late {
					seen |= 1 << holdLate
				}
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
		l.metrics.holds[bits.TrailingZeros(seen)].Add(1)
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
