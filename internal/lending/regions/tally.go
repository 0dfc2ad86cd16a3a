package regions

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// tally is a counter that each region counts on its own, under its limit less the hits reported by the other regions
// (mode eventual). It has no home and guarantees nothing: a region asks the others for their hits while requests use
// the counter. Only this replica keeps the answers.
type tally struct {
	query    Query // finds the counters of the other regions; from the first take, but any rule of the counter would do
	window   time.Duration
	interval time.Duration
	fixed    *descriptor.Window // the window, if it is on the clock: its hits end with it
	touched  atomic.Int64

	mu     sync.Mutex
	own    counted // hits that this region had in use after the last take
	others []others
	before counted // own at the moment when a region stopped answering
	silent bool
}

// counted is a number of hits in use until a given time.
type counted struct {
	hits  int64
	until time.Time
}

func (c counted) at(now time.Time) int64 {
	if !now.Before(c.until) {
		return 0
	}
	return c.hits
}

// others is the count of another region.
type others struct {
	counted
	waits bool      // a question is pending
	last  time.Time // when the last question was sent
	since time.Time // when the first question without an answer was sent; zero if all are answered
}

// The interval between two questions about a counter is a fiftieth of its window, within these bounds.
const (
	shortestInterval = 100 * time.Millisecond
	longestInterval  = time.Second
)

// silence is the number of intervals without an answer after which a region counts as silent.
const silence = 3

// tallies holds the tallies of the counters that this replica uses.
type tallies struct {
	most int

	mu  sync.RWMutex
	all map[string]*tally
}

// of returns the tally of a key and creates it if necessary. It returns nil if all tallies are in use: dropping one
// would lose the hits of the other regions.
func (c *tallies) of(key []byte, now time.Time, create func() *tally) *tally {
	c.mu.RLock()
	t := c.all[string(key)]
	c.mu.RUnlock()
	if t != nil {
		return t
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t = c.all[string(key)]; t != nil {
		return t
	}
	if len(c.all) >= c.most && !c.dropUnused(now) {
		return nil
	}
	t = create()
	t.touched.Store(now.UnixNano())
	c.all[string(key)] = t
	return t
}

// dropUnused looks at a few tallies and drops those that were not used for a window: the hits in them have expired.
func (c *tallies) dropUnused(now time.Time) (dropped bool) {
	n := 0
	for key, t := range c.all {
		if n++; n > 16 {
			break
		}
		if now.UnixNano()-t.touched.Load() > t.window.Nanoseconds() {
			delete(c.all, key)
			dropped = true
		}
	}
	return dropped
}

// tallyOf returns the tally of a take's counter, or nil if the counter is regional for lack of space.
func (s *Store) tallyOf(now time.Time, t *backend.Take) *tally {
	n := s.tallies.of(t.Key, now, func() *tally {
		window := t.Limit.Window // the take's limit is valid only during the take
		n := &tally{
			window: window.Length(), others: make([]others, len(s.others)),
			interval: min(max(window.Length()/50, shortestInterval), longestInterval),
			query: Query{
				Domain:      strings.Clone(t.Origin.Domain),
				Descriptors: [][]descriptor.Entry{descriptor.CloneEntries(t.Origin.Entries)},
				Takes:       []Take{{Limit: t.Rule.Tag(t.Limit)}},
			},
		}
		if t.Limit.Algorithm == descriptor.FixedWindow {
			n.fixed = &window
		}
		return n
	})
	if n == nil {
		s.counts.forgotten.Add(1)
	}
	return n
}

// look returns the current limit of this region's counter, the regions to ask now, and whether a region is silent.
func (t *tally) look(now time.Time, limit uint64) (left int64, due uint64, silent bool) {
	t.touched.Store(now.UnixNano())
	t.mu.Lock()
	defer t.mu.Unlock()
	left = t.left(now, limit)
	return left, t.due(now), t.silent
}

// saw records how many hits this region has in use.
func (t *tally) saw(own counted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.own = own
}

// left returns the current limit of this region's counter.
func (t *tally) left(now time.Time, limit uint64) int64 {
	elsewhere, silent := int64(0), false
	for i := range t.others {
		o := &t.others[i]
		elsewhere += o.at(now)
		silent = silent || !o.since.IsZero() && now.Sub(o.since) > silence*t.interval
	}
	if silent && !t.silent {
		t.before = t.own
	}
	t.silent = silent
	rest := int64(min(limit, backend.MaxCount)) - elsewhere
	if silent { // each region may use an equal part of the rest: 300 of 600 left, 3 regions: 100 each
		before := t.before.at(now)
		rest = before + (rest-before)/int64(len(t.others)+1)
	}
	return max(rest, 0)
}

// due returns the regions to ask now, one bit for each.
func (t *tally) due(now time.Time) (due uint64) {
	for i := range t.others {
		o := &t.others[i]
		if o.waits || now.Sub(o.last) < t.interval {
			continue
		}
		o.waits, o.last = true, now
		if o.since.IsZero() {
			o.since = now
		}
		due |= 1 << i
	}
	return due
}

func (s *Store) askOthers(t *tally, now time.Time, due uint64) {
	for i := range t.others {
		if due>>i&1 > 0 {
			s.far[s.others[i]].add(newQuestion(s.far[s.others[i]], &t.query, func(o *backend.Outcome) { s.heard(t, i, now, o) }))
		}
	}
}

// heard records a region's answer to a question that was sent at sent.
func (s *Store) heard(t *tally, region int, sent time.Time, answer *backend.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := &t.others[region]
	o.waits = false
	if answer.Failed {
		return
	}
	now := time.Now()
	o.since = time.Time{}
	c := counted{answer.Used, now.Add(answer.ResetAfter)}
	if t.fixed != nil {
		_, end := t.fixed.Bounds(sent.UnixMicro())
		if now.UnixMicro() >= end {
			return // the answer may be about the previous window
		}
		c.until = now.Add(micros(end - now.UnixMicro()))
	}
	s.unseen.add(now, c.hits-o.at(now))
	o.counted = c
}

// tallied is a request whose limits are lowered by the hits of other regions.
type tallied struct {
	request *backend.Request
	now     time.Time
	takes   []talliedTake // one for each take, in order
	done    func(error)
	end     func(error) // finish as a value, created once
}

type talliedTake struct {
	tally  *tally            // nil if the take is regional
	plain  *descriptor.Limit // the caller's limit, or nil if it was not lowered
	limit  descriptor.Limit  // the lowered limit
	silent bool              // another region does not answer
}

var tallieds = sync.Pool{New: func() any { return new(tallied) }}

// startTallied settles a request in the next store. Each of its takes is regional or has a tally.
func (s *Store) startTallied(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request,
	done func(error)) (settled bool, err error) {
	c := tallieds.Get().(*tallied)
	c.lower(s, time.Now(), r)
	if c.done = done; c.end == nil {
		c.end = c.finish
	}
	if settled, err = s.opts.Store.Start(ctx, now, b, r, c.end); settled {
		c.raise()
		c.release()
	}
	return settled, err
}

func (c *tallied) finish(err error) {
	done := c.done
	c.raise()
	c.release()
	done(err)
}

// lower replaces the limits of takes with a tally by the limits of this region's counters.
func (c *tallied) lower(s *Store, now time.Time, r *backend.Request) {
	c.request, c.now = r, now
	// lower takes the addresses of the elements, so they must not move
	c.takes = slices.Grow(c.takes[:0], len(r.Takes))[:len(r.Takes)]
	for i := range r.Takes {
		t, k := &r.Takes[i], &c.takes[i]
		k.tally, k.plain = nil, nil
		if !eventual(t.Limit) || t.Origin == nil { // without Origin, the others cannot be asked
			continue
		}
		if k.tally = s.tallyOf(now, t); k.tally == nil {
			continue
		}
		left, due := int64(0), uint64(0)
		left, due, k.silent = k.tally.look(now, t.Limit.Requests)
		if due != 0 {
			s.askOthers(k.tally, now, due)
		}
		if left < requests(t.Limit) {
			k.plain, k.limit = t.Limit, *t.Limit
			k.limit.Requests = uint64(left)
			t.Limit = &k.limit
		}
	}
}

// raise restores the limits of the caller's takes, and adds the hits of the other regions to the outcomes.
func (c *tallied) raise() {
	for i := range c.takes {
		k, t, o := &c.takes[i], &c.request.Takes[i], &c.request.Outcomes[i]
		if k.tally != nil && !o.Failed {
			k.tally.saw(counted{o.Used, c.now.Add(o.ResetAfter)})
		}
		if k.plain == nil {
			continue
		}
		lowered := requests(t.Limit)
		if t.Limit = k.plain; o.Failed {
			continue
		}
		elsewhere := requests(t.Limit) - lowered
		o.Before, o.Used = o.Before+elsewhere, o.Used+elsewhere
		if o.ResetAfter == 0 {
			o.ResetAfter = resetAfter(t.Limit, c.now.UnixMicro())
			o.MoreAfter = o.ResetAfter
		}
		if o.RetryAfter == backend.Never && t.Hits <= requests(t.Limit) {
			o.RetryAfter = o.ResetAfter // the missing hits are in use elsewhere
		}
		if k.silent && o.RetryAfter > longestInterval {
			o.RetryAfter = longestInterval // the others may answer again before the window ends
		}
	}
}

// requests returns the number of hits that a limit allows, at most MaxCount.
func requests(l *descriptor.Limit) int64 { return int64(min(l.Requests, backend.MaxCount)) }

func (c *tallied) release() {
	if cap(c.takes) > mostTallied {
		return
	}
	clear(c.takes)
	c.request, c.done = nil, nil
	tallieds.Put(c)
}

// mostTallied is the number of takes above which a tallied is not reused.
const mostTallied = 64

// eventual reports whether each region counts this limit itself and reports its hits to the others.
func eventual(l *descriptor.Limit) bool {
	return l.Regions != nil && l.Regions.Mode == descriptor.Eventual
}

// peekTallied looks at takes that are regional or have a tally.
func (s *Store) peekTallied(ctx context.Context, now time.Time, r *backend.Request) error {
	c := tallieds.Get().(*tallied)
	defer c.release()
	c.lower(s, time.Now(), r)
	defer c.raise()
	return s.opts.Store.Peek(ctx, now, r)
}

// unseen is the largest number of hits on one counter that another region reported as new in one answer, in this minute
// and in the previous one.
type unseen struct {
	mu         sync.Mutex
	minute     int64
	this, last int64
}

func (u *unseen) add(now time.Time, hits int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn(now)
	u.this = max(u.this, hits)
}

func (u *unseen) turn(now time.Time) {
	switch minute := now.Unix() / 60; minute - u.minute {
	case 0:
	case 1:
		u.minute, u.this, u.last = minute, 0, u.this
	default:
		u.minute, u.this, u.last = minute, 0, 0
	}
}

func (u *unseen) load() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.turn(time.Now())
	return max(u.this, u.last)
}

// resetAfter returns the time until all hits of a limit of mode eventual have expired.
func resetAfter(l *descriptor.Limit, now int64) time.Duration {
	if l.Algorithm == descriptor.FixedWindow {
		_, end := l.Window.Bounds(now)
		return micros(end - now)
	}
	return l.Window.Length()
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
