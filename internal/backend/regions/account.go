package regions

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// account is a counter in escrow whose home is another region.
type account struct {
	record[region.Account, *region.Account]
	home  *asker // of the region that counts
	query Query  // how the home finds the limit: of the first take. Rules of one counter have the same `regions`, and perhaps other numbers

	limit atomic.Uint64 // what the rule here says
	seen  holding
	need  atomic.Int64 // hits of takes that wait for the home

	offer atomic.Pointer[offer] // that this replica has seen last; nil: none

	// What was taken from the record with this stamp when it was seen last, and since when it was so much. The batch owns it.
	stamp, counted, countedAt int64

	// What the steps of a batch have found, for each.
	due   bool
	probe bool // it is also due to hear the home's rules
	lack  int64

	wait awaited
}

// poll is how long a take waits before it looks again: another replica of the region may have asked.
const poll = 50 * time.Millisecond

// accountOf returns the account of a take's counter.
func (s *Store) accountOf(t *backend.Take, home string) *account {
	a := s.accounts.of(t.Key, func() *account {
		a := &account{home: s.askers[home], query: queryOf(t)}
		a.seen.rule = pathOf(t.Rule)
		a.of, a.key, a.kind = s, slices.Clone(t.Key), backend.AccountKind
		a.taken, a.bound, a.shows, a.each = a.spent, a.most, a.notice, a.ask
		a.lives = func(v *region.Account, now int64) time.Duration {
			return time.Duration(v.Expires(now)-now) * time.Microsecond
		}
		return a
	})
	if n := t.Limit.Requests; a.limit.Load() != n {
		a.limit.Store(n)
	}
	a.seen.counts(t.Limit)
	return a
}

// queryOf copies what the home needs to find a take's limit. Its text may be in memory that the caller uses again.
func queryOf(t *backend.Take) Query {
	q := Query{Domain: strings.Clone(t.Origin.Domain), Limit: t.Rule.Tag(t.Limit), Entries: make([]descriptor.Entry, len(t.Origin.Entries))}
	for i, e := range t.Origin.Entries {
		q.Entries[i] = descriptor.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(e.Value)}
	}
	return q
}

// found is what a take has found in an account.
type found struct {
	region.Taken
	asked     bool  // a question is on its way
	remaining int64 // what the home had left
	again     int64 // until when it is not worth asking
	now       int64
}

// takeAccount makes a take from the region's account. If permits are missing, it waits for the home.
func (s *Store) takeAccount(w *wait, now time.Time, home string, t *backend.Take, o *backend.Outcome) error {
	a := s.accountOf(t, home)
	hits, waited := t.Hits, false
	if ok, err := s.takeOffered(w, now, a, t, o); ok || err != nil {
		return err
	}
	for {
		applied := a.wait.wake()
		var f found
		err := do(w, &a.record, &step[region.Account]{run: func(v *region.Account, at region.Reading) int64 {
			f = a.take(v, at, hits)
			return never
		}})
		switch {
		case err != nil:
			return err
		case f.SetBack:
			s.clocks.mistrust()
			return errClock
		case f.Allowed || f.Full || hits > int64(t.Limit.Capacity()):
			a.outcome(t, &f, o)
			return nil
		}
		if !waited {
			waited = true
			s.counts.cold.Add(1)
		}
		if err := a.wait.hopeless(a.home.region, a.home, f.asked); err != nil {
			s.counts.starved.Add(1)
			return err
		}
		timer := time.NewTimer(poll)
		a.need.Add(hits)
		err = w.until(applied, timer.C)
		a.need.Add(-hits)
		timer.Stop()
		if err != nil {
			s.counts.starved.Add(1)
			return err
		}
	}
}

// take is the step of a take.
func (a *account) take(v *region.Account, at region.Reading, hits int64) (f found) {
	if hits < 0 {
		if !v.GiveBack(at, -hits) {
			a.of.counts.dropped.Add(1)
		}
		f.Allowed, f.Left = true, v.Left(at.Now)
	} else {
		at.Rules = a.home.rules()
		f.Taken = v.Take(at, hits)
	}
	if f.Due {
		a.due = true
		if !f.Allowed {
			a.lack += hits
		}
	}
	f.asked, f.remaining, f.again, f.now = v.Waiting || f.Due, v.Remaining, v.Again, at.Now
	return f
}

// ask runs after the takes of a batch: if the home has to be asked, the account notes the question in the same step.
func (a *account) ask(v *region.Account, at region.Reading) (written func()) {
	a.seen.held(at.Now, v.Grants)
	a.seen.other.Store(v.Limit != 0 && v.Limit != a.limit.Load())
	due, probe, lack := a.due, a.probe, a.lack
	a.due, a.probe, a.lack = false, false, 0
	if !due {
		return nil
	}
	s := a.of
	if !probe {
		at.Rules = a.home.rules()
	}
	q, ok := v.Ask(at, s.opts.Region, s.opts.Epoch, lack+a.need.Load(), rand.Uint64()|1)
	if !ok {
		return nil
	}
	return func() {
		query := a.query
		query.Permits = &q
		a.home.add(&question{query: query, done: a.answer})
	}
}

// answer takes in what the home has answered.
func (a *account) answer(reply *Reply, err error) {
	switch {
	case err != nil:
		a.wait.end(nil) // the asker knows that the home cannot be reached
	case reply.Permits == nil:
		a.wait.end(fmt.Errorf("%w: the region %s does not answer for this counter: %s", backend.ErrUnavailable, a.home.region, reply.Refused))
	default:
		answer := reply.Permits
		a.add(&step[region.Account]{
			run:  func(v *region.Account, at region.Reading) int64 { v.Apply(at, answer); return never },
			done: func(error) { a.wait.end(nil) },
		})
	}
}

// outcome is what callers see: what is left is what the region holds, and what the home had left.
func (a *account) outcome(t *backend.Take, f *found, o *backend.Outcome) {
	l, hits := t.Limit, t.Hits
	capacity := int64(l.Capacity())
	used := max(capacity-f.Left-f.remaining, 0)
	o.Allowed, o.Used, o.Before = f.Allowed, used, used
	if f.Allowed {
		o.Used = min(max(used, hits, 0), capacity)
		o.Before = max(o.Used-hits, 0)
	}
	if o.Used > 0 {
		o.ResetAfter = resetAfter(l, f.now)
		o.MoreAfter = o.ResetAfter
	}
	switch {
	case f.Allowed:
	case hits > capacity:
		o.RetryAfter = backend.Never
	case l.Algorithm == descriptor.FixedWindow:
		o.RetryAfter = resetAfter(l, f.now)
	default:
		o.RetryAfter = micros(max(f.again-f.now, 1))
	}
}

// resetAfter is when nothing is used any more. Only the home knows when windows end that do not lie on the clock: then it is a whole one.
func resetAfter(l *descriptor.Limit, now int64) time.Duration {
	if (l.Algorithm == descriptor.FixedWindow || l.Interval) && !l.FirstHit {
		_, end := l.Window.Bounds(now)
		return micros(end - now)
	}
	return l.Window.Length()
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// peekAccount looks at the region's account.
func (s *Store) peekAccount(w *wait, home string, t *backend.Take, o *backend.Outcome) error {
	a := s.accountOf(t, home)
	v, c, err := look(w, &a.record)
	if err != nil {
		return err
	}
	at := c.At
	v.Spent(at, backend.HeadOf(c.Present).Count, at)
	f := found{now: at, remaining: v.Remaining, again: v.Again}
	f.Left = v.Left(at)
	if v.Fresh() {
		f.remaining = int64(t.Limit.Capacity()) // nothing was asked yet
	}
	f.Allowed = t.Hits <= f.Left+f.remaining
	looked := *t
	looked.Hits = 0
	a.outcome(&looked, &f, o)
	if !f.Allowed {
		o.RetryAfter = resetAfter(t.Limit, at)
	}
	return nil
}

// tend asks the home, if it is time: to return what is not used, to repeat a question, or for probe to hear its rules. It reports whether it does.
func (a *account) tend(at region.Reading, probe bool) bool {
	if !probe {
		at.Rules = a.home.rules()
	}
	a.mu.Lock()
	busy := a.busy
	v := new(region.Account)
	if !busy && a.known && len(a.value) > 0 {
		v = a.decode()
		a.spent(v, at)
	}
	a.mu.Unlock()
	if busy || v.Fresh() || !v.Due(at, 0) {
		return false
	}
	a.add(&step[region.Account]{
		run: func(*region.Account, region.Reading) int64 {
			a.due, a.probe = true, a.probe || probe
			return never
		},
		done: func(error) {},
	})
	return true
}
