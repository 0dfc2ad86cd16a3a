package regions

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// home is a counter whose home is this region.
type home struct {
	record[region.Counter, *region.Counter]
	limit descriptor.Limit // of the batch, for lives; the steps set it
	seen  holding
}

func (s *Store) counterOf(key []byte, rule *descriptor.Rule, l *descriptor.Limit) *home {
	h := s.homes.of(key, func() *home {
		h := &home{}
		h.seen.rule = pathOf(rule)
		h.of, h.key, h.kind = s, slices.Clone(key), "home"
		h.lives = func(v *region.Counter, now int64) time.Duration {
			if v.Fresh() {
				return time.Minute
			}
			return micros(v.Expires(now, &h.limit) - now)
		}
		h.each = func(v *region.Counter, at region.Reading) func() {
			h.seen.granted(at.Now, v.Peers)
			if v.Shares.Begun {
				n, until := v.Shares.Elsewhere(&h.limit, s.opts.Region, at.Now)
				h.seen.permits.Store(n)
				h.seen.until.Store(until)
			}
			return nil
		}
		return h
	})
	h.seen.counts(l)
	return h
}

// errNotActing is the error of a home that too few regions confirm, or that has an old list of regions.
var errNotActing = fmt.Errorf("%w: this region may not count for the others now: too few of them confirm it", backend.ErrUnavailable)

// dutyFor returns what this replica may do as a home.
func (s *Store) dutyFor(l *descriptor.Limit) region.Duty {
	var d region.Duty
	if p := s.duty.Load(); p != nil {
		d = *p
	}
	d.Grants = l.Regions.Mode == descriptor.InEscrow && !divided(l)
	return d
}

// atHome carries out a step on a counter of this region. If the counter has no record yet, what the region has counted on its own before is
// taken over first, so that a rule may change from regional to another mode within a window. run returns false if it could do nothing.
func (s *Store) atHome(w *wait, now time.Time, c *backend.Counter, fresh bool, run func(v *region.Counter, at region.Reading, l *descriptor.Limit, d *region.Duty) (until int64, ok bool)) error {
	h, limit := s.counterOf(c.Key, c.Rule, c.Limit), *c.Limit
	looked, before := false, int64(0)
	for {
		look, acts := false, false
		err := do(w, &h.record, &step[region.Counter]{fresh: fresh, run: func(v *region.Counter, at region.Reading) int64 {
			if look = v.Fresh() && h.counted && !looked; look {
				return never
			}
			h.limit = limit
			d := s.dutyFor(&limit)
			if v.Fresh() && before > 0 {
				v.Inherit(at, &limit, &d, before)
			}
			var until int64
			until, acts = run(v, at, &limit, &d)
			if !acts {
				return never
			}
			return min(until, d.Until)
		}})
		switch {
		case err != nil:
			return err
		case !look && !acts:
			return errNotActing
		case !look:
			return nil
		}
		if before, err = s.before(w.ctx, now, c); err != nil {
			return err
		}
		looked = true
	}
}

// before is what the region has counted on its own under a counter's key.
func (s *Store) before(ctx context.Context, now time.Time, c *backend.Counter) (int64, error) {
	limit := *c.Limit
	limit.Regions = nil
	r := backend.Request{Takes: []backend.Take{{Key: c.Key, Limit: &limit, Rule: c.Rule}}, Outcomes: make([]backend.Outcome, 1)}
	if err := s.opts.Store.Peek(ctx, now, &r); err != nil {
		return 0, fmt.Errorf("look at what the region has counted on its own: %w", err)
	}
	return r.Outcomes[0].Used, nil
}

// takeAtHome makes a take from a counter of this region.
func (s *Store) takeAtHome(w *wait, now time.Time, t *backend.Take, o *backend.Outcome) error {
	hits := t.Hits
	var answer backend.Outcome // the caller may use o for something else when the step runs
	err := s.atHome(w, now, &backend.Counter{Key: t.Key, Limit: t.Limit, Rule: t.Rule}, false,
		func(v *region.Counter, at region.Reading, l *descriptor.Limit, d *region.Duty) (int64, bool) {
			var ok bool
			answer, ok = v.Take(at, l, d, hits)
			return edge(l, v, &answer, at.Now), ok
		})
	if err == nil {
		*o = answer
	}
	return err
}

// edge is when the window ends that a take has counted in. What is written later would count in the window before.
//
// Logs and buckets have no edges: their hits count from the time of the computation, which is at most slack early.
func edge(l *descriptor.Limit, v *region.Counter, o *backend.Outcome, now int64) int64 {
	end := int64(never)
	if !l.Interval && (l.Algorithm == descriptor.SlidingLog || l.Algorithm == descriptor.TokenBucket || l.Algorithm == descriptor.LeakyBucket) {
		return now + slack + 1
	}
	switch {
	case l.Algorithm == descriptor.SlidingWindow:
		end = v.State.Start + l.Arithmetic.Length
	case l.Algorithm == descriptor.FixedWindow || l.Interval:
		if o.Used > 0 {
			end = now + backend.Boundary(l, o).Microseconds()
		}
	}
	if end <= now {
		return never
	}
	return end
}

// peekAtHome looks at a counter of this region.
func (s *Store) peekAtHome(w *wait, now time.Time, t *backend.Take, o *backend.Outcome) error {
	h := s.counterOf(t.Key, t.Rule, t.Limit)
	v, c, err := look(w, &h.record)
	if err != nil {
		return err
	}
	at := c.At
	if v.Fresh() && c.Counted {
		used, err := s.before(w.ctx, now, &backend.Counter{Key: t.Key, Limit: t.Limit, Rule: t.Rule})
		if err != nil {
			return err
		}
		backend.Adjust(t.Limit, &v.State, at, at, used)
	}
	*o = backend.Peek(t, &v.State, at)
	return nil
}

// look reads a record.
func look[T any, P kept[T]](w *wait, r *record[T, P]) (v *T, c *backend.RecordChange, err error) {
	done := make(chan struct{})
	c = &backend.RecordChange{Key: r.key, Kind: r.kind, Read: true, Done: func() { close(done) }}
	r.of.opts.Records.Change(c)
	if err := w.until(done, nil); err != nil {
		return nil, nil, err
	}
	if c.Err != nil {
		return nil, nil, c.Err
	}
	v = new(T)
	if len(c.Present) > backend.RecordHead && P(v).ReadRecord(c.Present[backend.RecordHead:]) != nil {
		v = new(T)
	}
	return v, c, nil
}

// reset clears a counter of this region.
func (s *Store) reset(w *wait, c *backend.Counter) error {
	h, limit := s.counterOf(c.Key, c.Rule, c.Limit), *c.Limit
	acts := false
	err := do(w, &h.record, &step[region.Counter]{run: func(v *region.Counter, at region.Reading) int64 {
		h.limit = limit
		d := s.dutyFor(&limit)
		if v.Fresh() {
			acts = true
			return never
		}
		acts = v.Reset(at, &limit, &d)
		return d.Until
	}})
	if err == nil && !acts {
		return errNotActing
	}
	return err
}

// Answer answers what another region asks. from is that region, as its certificate says. The answers are in the order of the questions.
func (s *Store) Answer(ctx context.Context, from string, epoch uint64, queries []Query) ([]Reply, error) {
	switch p := s.peers[from]; {
	case p == nil:
		return nil, fmt.Errorf("the region %q is not in the list of epoch %d", from, s.opts.Epoch)
	case len(queries) > MaxQueries:
		return nil, fmt.Errorf("%d questions in one call: at most %d", len(queries), MaxQueries)
	default:
		p.asks(epoch)
	}
	rules := s.rules() // before anything is decided by them
	replies := make([]Reply, len(queries))
	w := s.waitOf(ctx)
	defer w.end()
	// Steps of one record are gathered, so each question has a goroutine that waits for its record. Their number is that of a call's
	// questions, and the port bounds the calls.
	var answering sync.WaitGroup
	panics := make([]error, len(queries))
	for i := range queries {
		answering.Go(func() {
			defer async.Recover(&panics[i])
			replies[i] = s.answerOne(w, from, epoch, &queries[i])
		})
	}
	answering.Wait()
	for _, err := range panics {
		if err != nil {
			panic(err) // now that the port can recover from it
		}
	}
	if rules == s.rules() { // otherwise they have changed meanwhile
		for i := range replies {
			if a := replies[i].Permits; a != nil {
				a.Rules = rules
			}
		}
	}
	return replies, nil
}

// rules returns the rules that this replica decides by: Resolver.Rules.
func (s *Store) rules() uint64 {
	if r := s.resolver.Load(); r != nil {
		return (*r).Rules(time.Now())
	}
	return 0
}

func (s *Store) answerOne(w *wait, from string, epoch uint64, q *Query) Reply {
	resolver := s.resolver.Load()
	if resolver == nil {
		return Reply{Refused: Unavailable}
	}
	now := time.Now()
	c, ok := (*resolver).Resolve(now, q.Domain, q.Entries, q.Limit)
	switch {
	case !ok:
		return Reply{Refused: NoRule}
	case eventual(c.Limit) && q.Permits == nil && q.Share == nil && q.Hits == 0:
		reply, err := s.countedHere(w.ctx, now, &c)
		if err != nil {
			return Reply{Refused: Unavailable}
		}
		return reply
	case !concerns(c.Limit),
		(c.Limit.Regions.Mode == descriptor.InEscrow) != (q.Permits != nil || q.Share != nil),
		c.Limit.Capacity() > 0 && divided(c.Limit) != (q.Share != nil):
		return Reply{Refused: OtherMode}
	}
	switch home, err := s.homeOf(w, c.Key, c.Limit); {
	case err != nil:
		return Reply{Refused: Unavailable}
	case home != s.opts.Region:
		return Reply{Refused: OtherHome}
	}
	if c.Limit.Capacity() == 0 {
		return blocked(epoch, q)
	}
	var reply Reply
	var err error
	switch {
	case q.Permits != nil:
		reply, err = s.exchange(w, now, from, epoch, &c, q.Permits)
	case q.Share != nil:
		reply, err = s.divide(w, now, from, epoch, &c, q.Share)
	default:
		reply, err = s.takeFor(w, now, epoch, &c, q.Hits)
	}
	switch {
	case err == nil:
		return reply
	case errors.Is(err, errNotActing):
		return Reply{Refused: NotActing}
	default:
		return Reply{Refused: Unavailable}
	}
}

// blocked is the answer about a caller that an override blocks here: nothing is left, and nothing is counted.
func blocked(epoch uint64, q *Query) Reply {
	switch {
	case q.Share != nil:
		return Reply{Share: &region.ShareAnswer{
			Epoch: epoch, Incarnation: q.Share.Incarnation, Number: q.Share.Number, Nonce: q.Share.Nonce, Result: region.Full,
		}}
	case q.Permits == nil:
		return Reply{Outcome: &backend.Outcome{RetryAfter: backend.Never}}
	}
	return Reply{Permits: &region.Answer{
		Epoch: epoch, Incarnation: q.Permits.Incarnation, Number: q.Permits.Number, Nonce: q.Permits.Nonce,
		Result: region.Full, RetryAfter: time.Second.Microseconds(),
	}}
}

// exchange answers an account of another region.
func (s *Store) exchange(w *wait, now time.Time, from string, epoch uint64, c *backend.Counter, question *region.Question) (Reply, error) {
	q := *question
	q.Region, q.Epoch = from, epoch
	q.Grants = slices.Clone(q.Grants)
	if !plausible(&q) {
		return Reply{Refused: Invalid}, nil
	}
	a := new(region.Answer)
	// The time of the computation must not be earlier than when the question was sent: what is granted is valid from then on.
	err := s.atHome(w, now, c, true, func(v *region.Counter, at region.Reading, l *descriptor.Limit, d *region.Duty) (int64, bool) {
		*a = v.Exchange(at, l, d, &q)
		return grantEdge(a, at.Now), true
	})
	return Reply{Permits: a}, err
}

// grantEdge is when the window ends that a grant was charged to. It must be written before.
func grantEdge(a *region.Answer, now int64) int64 {
	if a.Result == region.Granted && a.Ends > now {
		return a.Ends
	}
	return never
}

// takeFor makes a take for another region.
func (s *Store) takeFor(w *wait, now time.Time, epoch uint64, c *backend.Counter, hits int64) (Reply, error) {
	if epoch != s.opts.Epoch {
		return Reply{Refused: NotActing}, nil
	}
	if hits < -backend.MaxHits || hits > backend.MaxHits {
		return Reply{Refused: Invalid}, nil
	}
	o := new(backend.Outcome)
	err := s.takeAtHome(w, now, &backend.Take{Key: c.Key, Limit: c.Limit, Rule: c.Rule, Hits: hits}, o)
	return Reply{Outcome: o}, err
}

// mostReported is how many grants a question may report. An account keeps fewer.
const mostReported = 64

// plausible reports whether an account may have asked a question. The arithmetic bounds what it grants by what is left, and believes reports
// only within what was granted, or as something that it has forgotten and charges again. What remains are numbers that would
// overflow.
func plausible(q *region.Question) bool {
	if len(q.Grants) > mostReported || q.Incarnation == 0 || q.Want > math.MaxInt32 || q.Want < -backend.MaxHits || q.Need < 0 || q.Need > backend.MaxHits {
		return false
	}
	const latest = 1 << 60
	for i := range q.Grants {
		g := &q.Grants[i]
		if g.Permits < 0 || g.Used < 0 || g.Returned < 0 || g.Permits > backend.MaxCount || g.Used > g.Permits || g.Returned > g.Permits-g.Used ||
			g.Charged < 0 || g.Charged > latest || g.Ends < 0 || g.Ends > latest {
			return false
		}
	}
	return true
}
