package limiter

import (
	"context"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// `on_error` of a rule, a domain or the server decides what happens to a descriptor whose counters the store could not
// read: its request passes, is denied, is counted by this replica under its share of the limit, or gets the error.

// fallBack answers the takes that the store could not answer. It returns an error based on cause, the store's error, if
// on_error gives no answer.
func (w *work) fallBack(ctx context.Context, cause error) error {
	w.metrics.failed.requests.Add(1)
	cause = fmt.Errorf("count hits: %w", cause)
	if err := ctx.Err(); err != nil {
		return cause // the client is gone
	}
	degraded := false
	for i := range w.subjects {
		s := &w.subjects[i]
		if !w.failed(s) {
			continue
		}
		choice := w.onError(s)
		if s.changesReservation() && w.req.Purpose != Settled {
			if w.req.Reservation != nil {
				return cause // the client can repeat it
			}
			choice = descriptor.OnErrorAllow // these hits have already passed
		}
		switch choice {
		case descriptor.OnErrorAllow, descriptor.OnErrorDeny:
			w.presume(s, choice == descriptor.OnErrorAllow)
		case descriptor.OnErrorLocal:
			if w.Local == nil {
				return cause
			}
			w.countLocally(s)
		default:
			w.metrics.failed.descriptors[descriptor.OnErrorError].Add(1)
			return cause
		}
		s.degraded, degraded = choice, true
	}
	if here := &w.countedHere; len(here.Takes) > 0 {
		here.Together = w.request.Together
		here.Prepare()
		if err := backend.Await(ctx, w.Local, w.now, &here.Request); err != nil {
			return fmt.Errorf("%w; count locally: %w", cause, err)
		}
		here.Answer(&w.request)
	}
	if degraded {
		w.countDegraded()
	}
	return nil
}

// failed reports whether a take of a descriptor has no answer. One of a limit that is not enforced needs none.
func (w *work) failed(s *subject) bool {
	for _, c := range w.binding(s) {
		if w.outcome(c).Failed {
			return true
		}
	}
	return false
}

// onError returns the choice for a descriptor: its rule's, its domain's, or the server's. A descriptor that is not
// enforced passes.
func (w *work) onError(s *subject) descriptor.OnError {
	switch {
	case s.shadow() || w.snap.settings.Shadow:
		return descriptor.OnErrorAllow
	case s.rule != nil && s.rule.OnError != descriptor.OnErrorDefault:
		return s.rule.OnError
	case w.domain.OnError != descriptor.OnErrorDefault:
		return w.domain.OnError
	default:
		return w.snap.settings.OnError
	}
}

// presume answers the failed takes of a descriptor without counting them.
func (w *work) presume(s *subject, allowed bool) {
	for _, c := range w.taken(s) {
		if w.outcome(c).Failed {
			*w.outcome(c) = backend.Outcome{Failed: true, Allowed: allowed}
		}
	}
}

// countLocally adds the failed takes of a descriptor to the takes that this replica counts, under its share of the
// limit.
func (w *work) countLocally(s *subject) {
	for _, c := range w.taken(s) {
		if !w.outcome(c).Failed {
			continue
		}
		if w.replicas(c.limit) > 1 {
			c.share = w.shareOfCharge(s, c)
		}
		t := w.countedHere.At(c.take)
		if t == nil {
			if c.guard != none {
				w.countedHere.Add(c.guard, w.request.Takes[c.guard])
			}
			t = w.countedHere.Add(c.take, w.request.Takes[c.take])
			if w.req.Purpose != Settled { // settled hits are a commit without a reservation
				t.Reservation = nil // no ID is returned, so the client could not commit the reservation
			}
		}
		// several charges may share a take: use the one with the smallest limit
		if c.share != nil && c.limit == w.request.Takes[c.take].Limit {
			t.Limit = c.share
		}
	}
}

// shareOfCharge returns this replica's share of the limit of a charge. It has room for the request, if the whole limit
// has: else a request of many hits would be denied until the store answers.
func (w *work) shareOfCharge(s *subject, c *charge) *descriptor.Limit {
	room := uint64(max(w.request.Takes[c.take].Hits, 1))
	if s.rule != nil && !c.brought() {
		room = max(room, s.hitCost())
		if c.limit == &s.rule.Limits[c.index] && c.limit.Regions == nil {
			if whole := &w.snap.shares[s.rule.Index][c.index]; room <= whole.Capacity() {
				return whole
			}
		}
	}
	share := shareOf(c.limit, w.replicas(c.limit), room)
	return &share
}

// replicas returns how many replicas share a limit: those of all regions, if it has a home.
func (w *work) replicas(l *descriptor.Limit) int {
	n := max(w.snap.replicas, 1)
	if l.Regions != nil && l.Regions.HasHome() {
		n *= max(w.snap.settings.Regions, 1)
	}
	return n
}

// countDegraded counts a request that on_error has answered, and how it has answered each descriptor.
func (w *work) countDegraded() {
	w.metrics.failed.answered.Add(1)
	for i := range w.subjects {
		w.metrics.failed.descriptors[w.subjects[i].degraded].Add(1)
	}
}

// shareOf divides a limit by the number of replicas. Each replica gets at least one request per window, and has room
// for this many hits, unless not even the whole limit has.
func shareOf(l *descriptor.Limit, replicas int, room uint64) descriptor.Limit {
	n := uint64(max(replicas, 1))
	// spare percentage: the hits do not fit until there is also room for the other classes
	if kept := l.Classes.Others(); kept > 0 {
		if kept >= 100 {
			return *l
		}
		room = (min(room, l.Requests)*100 + 99 - kept) / (100 - kept)
	}
	s := *l
	if s.Requests > 0 {
		s.Requests = max(s.Requests/n, 1)
	}
	if s.Burst > 0 {
		s.Burst = max(s.Burst/n, 1)
	}
	if has := s.Capacity(); has < room && s.Has(descriptor.SettingBurst) {
		s.Burst = min(s.Burst+room-has, l.Burst)
	} else if has < room {
		s.Requests = min(room, l.Requests)
	}
	if l.Arithmetic.Length != 0 && s.Compile() != nil {
		return *l // the smaller limit cannot be counted exactly; the whole limit can
	}
	return s
}

// shares divides the limits of all rules. It returns nil if there is only one replica.
func shares(tree *descriptor.Tree, replicas int) [][]descriptor.Limit {
	if replicas <= 1 {
		return nil
	}
	all := make([][]descriptor.Limit, len(tree.Rules))
	for i, r := range tree.Rules {
		all[i] = make([]descriptor.Limit, len(r.Limits))
		for j := range r.Limits {
			all[i][j] = shareOf(&r.Limits[j], replicas, 1)
		}
	}
	return all
}
