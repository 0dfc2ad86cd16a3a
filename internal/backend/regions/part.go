package regions

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// part is this region's part of a bucket in escrow. The region that is the home has one, too.
type part struct {
	record[region.Holding, *region.Holding]
	home  string
	query Query // how another home finds the limit: of the first take, as in account
	wait  awaited
	seen  holding

	counter atomic.Pointer[backend.Counter] // what the rule here says
	due     bool                            // the steps of a batch have found that the home has to be asked
}

// divided reports whether a limit is divided into parts.
func divided(l *descriptor.Limit) bool {
	return l.Regions.Mode == descriptor.InEscrow && region.Divided(l)
}

// partOf returns this region's part of a take's bucket.
func (s *Store) partOf(t *backend.Take, home string) *part {
	p := s.parts.of(t.Key, func() *part {
		p := &part{home: home}
		p.seen.rule = pathOf(t.Rule)
		p.of, p.key, p.kind = s, slices.Clone(t.Key), "part"
		p.each = p.ask
		p.lives = func(v *region.Holding, now int64) time.Duration { return micros(v.LastsUntil(now) - now) }
		if t.Origin != nil {
			p.query = queryOf(t)
		}
		return p
	})
	if c := p.counter.Load(); c == nil || *c.Limit != *t.Limit || c.Rule != t.Rule {
		limit := *t.Limit // it is asked about after the take
		p.counter.Store(&backend.Counter{Key: p.key, Limit: &limit, Rule: t.Rule})
	}
	p.seen.counts(t.Limit)
	return p
}

// takePart makes a take from the region's part of a bucket. If it has none, it waits for the home. Hits that are given back are lost: the part
// may have become smaller or larger since, so it is not known whether they were missing from it.
func (s *Store) takePart(w *wait, home string, t *backend.Take, o *backend.Outcome) error {
	if t.Hits < 0 {
		s.counts.dropped.Add(1)
		looked := *t
		looked.Hits = 0
		return s.peekPart(w, home, &looked, o)
	}
	p := s.partOf(t, home)
	limit, hits, waited := *t.Limit, t.Hits, false
	for {
		applied := p.wait.wake()
		var f region.Taken
		asked := false
		err := do(w, &p.record, &step[region.Holding]{run: func(v *region.Holding, at region.Reading) int64 {
			f = v.Take(at, &limit, hits)
			p.due = p.due || f.Due
			asked = v.Waiting || f.Due
			if !f.Allowed || hits == 0 {
				return never
			}
			return min(v.Expires, at.Now+slack+1)
		}})
		switch {
		case err != nil:
			return err
		case f.SetBack:
			s.clocks.mistrust()
			return errClock
		case f.Allowed || f.Full || hits > int64(limit.Capacity()):
			partOutcome(&limit, hits, &f, o)
			return nil
		}
		if !waited {
			waited = true
			s.counts.cold.Add(1)
		}
		err = p.wait.hopeless(p.home, s.askers[p.home], asked)
		if err == nil {
			timer := time.NewTimer(poll)
			err = w.until(applied, timer.C)
			timer.Stop()
		}
		if err != nil {
			s.counts.starved.Add(1)
			return err
		}
	}
}

// partOutcome is what callers see: what is left is what the region's part has.
func partOutcome(l *descriptor.Limit, hits int64, f *region.Taken, o *backend.Outcome) {
	capacity := int64(l.Capacity())
	*o = f.Outcome
	o.Allowed = f.Allowed
	o.Used = min(max(capacity-f.Left, 0), capacity)
	o.Before = o.Used
	switch {
	case f.Allowed:
		o.Before = max(o.Used-hits, 0)
	case hits > capacity:
		o.RetryAfter = backend.Never
	case o.RetryAfter <= 0 || o.RetryAfter == backend.Never: // the part is too small for so many at once, or is none; it may grow with the next answer
		o.RetryAfter = time.Second
	}
}

// peekPart looks at the region's part.
func (s *Store) peekPart(w *wait, home string, t *backend.Take, o *backend.Outcome) error {
	p := s.partOf(t, home)
	v, c, err := look(w, &p.record)
	if err != nil {
		return err
	}
	at := c.At
	f := region.Taken{Allowed: true, Left: int64(t.Limit.Capacity())}
	if !v.Fresh() && at < v.Expires {
		f = v.Take(region.Reading{Now: at, Least: at, Generation: v.Generation}, t.Limit, 0)
		f.Allowed = t.Hits <= f.Left
	}
	partOutcome(t.Limit, 0, &f, o)
	if !f.Allowed {
		o.RetryAfter = time.Second
	}
	return nil
}

// ask runs after the takes of a batch: if the home has to be asked, the part notes the question in the same step.
func (p *part) ask(v *region.Holding, at region.Reading) (written func()) {
	p.seen.permits.Store(v.Tokens)
	p.seen.until.Store(v.Expires)
	due := p.due
	p.due = false
	if !due {
		return nil
	}
	s, c := p.of, p.counter.Load()
	q, ok := v.Ask(at, c.Limit, s.opts.Region, s.opts.Epoch, rand.Uint64()|1)
	if !ok {
		return nil
	}
	return func() {
		if p.home == s.opts.Region {
			p.askHere(c, &q)
			return
		}
		query := p.query
		query.Share = &q
		s.askers[p.home].add(&question{query: query, done: p.answer})
	}
}

// askHere asks this region, which is the home.
func (p *part) askHere(c *backend.Counter, q *region.ShareQuestion) {
	s := p.of
	if !s.begin() {
		p.wait.end(nil)
		return
	}
	async.Go(func() error {
		w := s.waitOf(s.stopping)
		defer w.end()
		reply, err := s.divide(w, time.Now(), s.opts.Region, s.opts.Epoch, c, q)
		if err == nil {
			p.answer(&reply, nil)
		}
		return err
	}, func(err error) {
		defer s.sending.Done()
		if err != nil {
			p.wait.end(err)
		}
	})
}

// answer takes in what the home has answered.
func (p *part) answer(reply *Reply, err error) {
	switch {
	case err != nil:
		p.wait.end(nil) // the asker knows that the home cannot be reached
	case reply.Share == nil:
		p.wait.end(fmt.Errorf("%w: the region %s does not answer for this counter: %s", backend.ErrUnavailable, p.home, reply.Refused))
	default:
		answer, limit := reply.Share, *p.counter.Load().Limit
		p.add(&step[region.Holding]{
			run:  func(v *region.Holding, at region.Reading) int64 { v.Apply(at, &limit, answer); return never },
			done: func(error) { p.wait.end(nil) },
		})
	}
}

// divide answers a region that asks for its part of a bucket of this region.
func (s *Store) divide(w *wait, now time.Time, from string, epoch uint64, c *backend.Counter, question *region.ShareQuestion) (Reply, error) {
	q := *question
	q.Region, q.Epoch = from, epoch
	if q.Incarnation == 0 || min(q.Held, q.Demand, q.Returned) < 0 || max(q.Held, q.Demand, q.Returned) > backend.MaxCount {
		return Reply{Refused: Invalid}, nil
	}
	a := new(region.ShareAnswer)
	err := s.atHome(w, now, c, true, func(v *region.Counter, at region.Reading, l *descriptor.Limit, d *region.Duty) (int64, bool) {
		*a = v.Divide(at, l, d, &q)
		return never, true
	})
	return Reply{Share: a}, err
}

// tend asks the home, if it is time: the part gets smaller as the demand does.
func (p *part) tend(at region.Reading) {
	p.mu.Lock()
	busy := p.busy
	v := new(region.Holding)
	if !busy && p.known && len(p.value) > 0 {
		v = p.decode()
	}
	p.mu.Unlock()
	if busy || !v.Due(at.Now) {
		return
	}
	p.add(&step[region.Holding]{
		run:  func(*region.Holding, region.Reading) int64 { p.due = true; return never },
		done: func(error) {},
	})
}

// refill makes this region's part full, after the counter was reset.
func (s *Store) refill(w *wait, c *backend.Counter) error {
	p := s.partOf(&backend.Take{Key: c.Key, Limit: c.Limit, Rule: c.Rule}, s.opts.Region)
	return do(w, &p.record, &step[region.Holding]{run: func(v *region.Holding, _ region.Reading) int64 { v.Refill(); return never }})
}
