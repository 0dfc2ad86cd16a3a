package regions

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// State describes this region for the other regions. Every answer carries it. The region port sets Replicas.
func (s *Store) State() State {
	st := State{Replica: s.replica}
	if r := s.resolver.Load(); r != nil {
		st.Sum, st.Rules = (*r).Sums(s.opts.Now())
	}
	st.Sum += s.resets.Load() * 0x9e3779b97f4a7c15
	return st
}

// answering is a query of another region that is being carried out.
type answering struct {
	of     *Store
	from   string
	query  *Query
	part   backend.SubRequest // the takes whose counters were found
	answer Answer
	done   func(*Answer)
}

// Answer carries out a query of another region. from is the region that the certificate of the other side names. done
// is called once, perhaps on another goroutine, and must return quickly. The limit counts here even if the rules of
// this region name another home: homes never forward.
func (s *Store) Answer(ctx context.Context, from string, q *Query, done func(*Answer)) {
	a := &answering{of: s, from: from, query: q, done: done}
	now := s.opts.Now()
	if p := s.peers[from]; p != nil {
		p.asks()
	}
	if !a.resolve(now) {
		done(&a.answer)
		return
	}
	r := &a.part.Request
	r.Together, r.PeekWhenKnown = q.Together, q.PeekWhenKnown
	a.part.Prepare()
	switch {
	case len(r.Takes) == 0:
		done(&a.answer)
	case q.Look:
		async.Go(func() error { return s.opts.Store.Peek(ctx, now, r) }, a.finish)
	default:
		if settled, err := s.opts.Store.Start(ctx, now, nil, r, a.finish); settled {
			a.finish(err)
		}
	}
}

// resolve finds the counters of a query. It returns false if there is nothing to charge.
func (a *answering) resolve(now time.Time) bool {
	q, resolver := a.query, a.of.resolver.Load()
	a.answer.Outcomes = make([]backend.Outcome, len(q.Takes))
	a.answer.Limits = make([]*descriptor.Limit, len(q.Takes))
	backend.Fail(a.answer.Outcomes)
	if resolver == nil {
		a.answer.Rejected = Unavailable
		return false
	}
	for i := range q.Takes {
		t := &q.Takes[i]
		if t.Descriptor < 0 || t.Descriptor >= len(q.Descriptors) || t.Hits > backend.MaxHits || t.Hits < -backend.MaxHits ||
			t.Guards && !q.Look && !q.guardsNext(i) {
			a.answer.Rejected = Invalid
			return false
		}
	}
	for i := range q.Takes {
		t := &q.Takes[i]
		found, ok := (*resolver).Resolve(now, q.Domain, q.Descriptors[t.Descriptor], t.Limit)
		if q.Look {
			found.Limit, found.Free = found.Seen, false
		}
		switch {
		case !ok:
			a.answer.Rejected = NoRule
			if q.Together {
				return false
			}
			continue
		case found.Free, t.Guards && found.Limit.Penalty == nil:
			a.answer.Outcomes[i], a.answer.Limits[i] = backend.Outcome{Allowed: true}, found.Limit
			continue
		}
		a.noteHome(&found)
		a.add(i, t, &found, now)
	}
	return true
}

// guardsNext reports whether the take after a guard is under the same limit.
func (q *Query) guardsNext(i int) bool {
	if i+1 == len(q.Takes) {
		return false
	}
	t, next := &q.Takes[i], &q.Takes[i+1]
	return !next.Guards && next.Descriptor == t.Descriptor && next.Limit == t.Limit
}

// add adds a take to the request of this region's store.
func (a *answering) add(i int, t *Take, found *backend.Resolved, now time.Time) {
	k := backend.Take{
		Key: found.Key, Limit: found.Limit, Rule: found.Rule, Hits: t.Hits, Member: t.Descriptor, Vote: t.Vote,
		CountDenied: t.CountDenied, Settled: t.Settled, Guards: t.Guards,
	}
	a.answer.Limits[i] = found.Limit
	if t.Guards {
		k.Key, k.Limit, k.Hits = descriptor.AppendPenaltyKey(nil, found.Key, t.Shadow), found.Limit.Penalty, 0
	}
	if t.Settled && t.Commits { // the store charges it even if the hits do not fit
		k.Reservation = &backend.Reservation{Op: backend.OpCommit, Final: true, ChargeUnknown: true}
		_, _ = rand.Read(k.Reservation.ID[:]) // it never fails
	}
	if t.Hits < 0 && (found.RefundsDenied || !inWindow(found.Limit, t.Ends, now)) {
		k.Hits = 0
	}
	a.part.Add(i, k)
}

// inWindow reports whether ends, in microseconds since 1970, is the end of the current window. If it is 0, the window
// is unknown and counts as the current one.
func inWindow(l *descriptor.Limit, ends int64, now time.Time) bool {
	if ends == 0 || !onClock(l) {
		return true
	}
	return now.UnixMicro() < ends && now.UnixMicro() >= ends-l.Window.LengthAt(now).Microseconds()
}

// noteHome records and logs that another region is the counter's home by the rules of this one.
func (a *answering) noteHome(found *backend.Resolved) {
	home, elsewhere := a.of.HomeElsewhere(found.Key, found.Limit)
	if !elsewhere {
		return
	}
	a.answer.Home = home
	a.of.counts.otherHome.Add(1)
	if a.of.strange.first("ours|" + a.from + "|" + home + "|" + a.query.Domain) {
		a.of.opts.Logger.Warn("another region asks this one to count limits with another home: deploy the same rules in "+
			"all regions",
			"region", a.from, "home_here", home, "domain", a.query.Domain)
	}
}

// finish copies the outcomes of the store into the answer.
func (a *answering) finish(err error) {
	for i := range a.part.Takes {
		o := &a.answer.Outcomes[a.part.Place(i)]
		*o = a.part.Outcomes[i]
		o.Cached = false // a denial from this cache is an answer of the store for the other region
	}
	if err != nil {
		if p, ok := errors.AsType[*async.PanicError](err); ok {
			a.of.opts.Logger.Error("panic while answering another region", "region", a.from, "panic", p.Value, "stack",
				string(p.Stack))
			backend.Fail(a.answer.Outcomes)
		}
		a.answer.Rejected = Unavailable
		if !errors.Is(err, context.Canceled) && a.of.strange.first("unavailable|"+a.from) {
			a.of.opts.Logger.Warn("a query of another region was not carried out", "region", a.from, "error", fmt.Sprint(err))
		}
	}
	a.done(&a.answer)
}
