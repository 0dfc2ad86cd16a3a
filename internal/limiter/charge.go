package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// charge makes takes from the charges. If the request is one atomic step, charges with the same counter and vote share
// a take.
func (w *work) charge() {
	if w.domain == nil {
		return
	}
	if w.needs&needReservation != 0 {
		w.growReservations()
	}
	atomic := w.atomic()
	w.request.Together = atomic || w.snap.settings.StopWhenOver
	w.request.PeekWhenKnown = !atomic && w.snap.settings.StopWhenOver
	passedInQuotaMode := atomic && w.passedInQuotaMode()
	for i := range w.subjects {
		s := &w.subjects[i]
		vote := w.vote(s, atomic, passedInQuotaMode)
		cs := w.chargesOf(s)
		for j := range cs {
			if c := &cs[j]; !c.state.away() {
				w.take(i, c, vote, atomic)
			}
		}
	}
	if len(w.joining.members) > 0 {
		w.grantEqually()
	}
	w.request.Outcomes = append(w.request.Outcomes, make([]backend.Outcome, len(w.request.Takes))...)
}

// atomic reports whether the request is one atomic step: if a limit denies it, no other limit counts it.
func (w *work) atomic() bool {
	switch {
	case w.req.Purpose == Settled:
		return false
	case w.req.Reservation != nil:
		return true
	default:
		return w.snap.settings.allOrNothing(w.domain)
	}
}

// vote returns how a denial of a descriptor affects the request. A descriptor that is not enforced has no vote. In
// quota mode, if the request is one atomic step, one passing descriptor is enough. If each descriptor counts for
// itself, votes matter only among the limits of one descriptor, and for StopWhenOver, which does not consider quota
// mode.
func (w *work) vote(s *subject, atomic, passedInQuotaMode bool) backend.Vote {
	switch {
	case s.shadow():
		return backend.VoteNone
	case !atomic:
		return backend.VoteAll
	case w.snap.settings.Shadow, passedInQuotaMode && w.quota(s):
		return backend.VoteNone
	case w.quota(s):
		return backend.VoteAny
	default:
		return backend.VoteAll
	}
}

// take gives a charge of a descriptor, the member, its take.
func (w *work) take(member int, c *charge, vote backend.Vote, atomic bool) {
	s := &w.subjects[member]
	if c.state&unenforced != 0 {
		vote = backend.VoteNone
	}
	t := backend.Take{
		Key:         w.key(s, c),
		Limit:       c.limit,
		Rule:        s.rule,
		Hits:        s.hits,
		Member:      member,
		Vote:        vote,
		CountDenied: countsDenied(c.limit, atomic) || w.req.Purpose == Settled,
		Settled:     w.req.Purpose == Settled,
	}
	if c.brought() {
		t.Rule, t.Hits = w.domain.RequestLimits, s.hits/c.cost
	}
	if c.limit.Regions != nil {
		w.origins = append(w.origins, backend.Origin{Domain: w.req.Domain, Entries: s.sent})
		t.Origin = &w.origins[len(w.origins)-1]
	}
	if s.reservation != nil {
		w.setReservation(&t, s, c)
	}
	w.place(&t, c, atomic)
}

// place gives a charge its take: one that is there already and that t can join, or t itself, after its guard.
func (w *work) place(t *backend.Take, c *charge, atomic bool) {
	c.take = none
	if atomic && joinable(t) {
		c.take = w.findJoinable(t)
	}
	if c.take != none {
		c.guard = w.join(c.take, t)
	} else {
		if c.limit.Penalty != nil {
			c.guard = w.addGuard(&w.subjects[t.Member], c, t)
		}
		c.take = len(w.request.Takes)
		w.request.Takes = append(w.request.Takes, *t)
	}
	if w.req.Reservation != nil && w.req.Reservation.Least > 0 {
		w.joining.countMember(c.take)
	}
}

// key appends the key of a charge's counter to the keys of the other takes. Numbers that differ from the rule's do not
// change the key. A block has a different algorithm and so a separate counter, which stays empty.
func (w *work) key(s *subject, c *charge) []byte {
	keyed, rule, entries := c.limit, s.rule, s.counted
	switch {
	case c.brought():
		rule, entries = nil, s.sent
	case rule != nil && s.by != byBlock:
		keyed = &rule.Limits[c.index]
	}
	start := len(w.keyBytes)
	w.keyBytes = w.Keys.AppendKey(w.keyBytes, w.req.Domain, entries, rule, keyed)
	return w.keyBytes[start:len(w.keyBytes):len(w.keyBytes)]
}

// countsDenied reports whether denied hits count. In a request that is one atomic step, they count only if the rule
// sets it.
func countsDenied(l *descriptor.Limit, atomic bool) bool {
	if atomic && l.CountDenied == descriptor.DeniedDefault {
		return false
	}
	return l.CountsDenied()
}
