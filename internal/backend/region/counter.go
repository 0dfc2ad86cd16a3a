package region

import (
	"cmp"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Counter is what the home's Redis keeps: a counter like any other, and next to it what other regions hold. The zero Counter is
// unused.
type Counter struct {
	State backend.State
	Epoch uint64
	From  int64 // Duty.From
	Peers []Peer

	Shares Shares // of a bucket that is divided, and whose State is not used

	// Learning is until when nothing is granted, because the home has forgotten grants, and other regions may hold some of which it
	// has not heard again yet.
	Learning int64
}

// Peer is what the home knows about the account of one region.
type Peer struct {
	Region      string
	Incarnation uint64
	Number      uint64 // of the last question
	Nonce       uint64 // of the last question
	Former      uint64 // the incarnation before: its account is lost, and its questions come late

	// Settled: nothing is left of the grants of this incarnation up to this number, and they are forgotten.
	Settled uint64

	Grants []Grant // oldest first; also those of earlier incarnations, until they expire
}

// Take adds hits in the home's region, or for a region that asks the home each time. It returns false, and counts nothing, if the
// home may not act.
func (c *Counter) Take(at Reading, l *descriptor.Limit, d *Duty, hits int64) (backend.Outcome, bool) {
	t, ok := c.enter(at, l, d)
	if !ok || !c.rejoin(&t.limit, at.Now) {
		return backend.Outcome{}, false
	}
	return c.settle(&t.limit, at.Now, hits), true
}

// rejoin makes a bucket one again that was divided until the rule changed. It returns false while a region may still have its part: each has
// the last for as long as a grant lives.
func (c *Counter) rejoin(l *descriptor.Limit, now int64) bool {
	if !c.Shares.Begun {
		return true
	}
	c.Shares.save(l, now)
	c.Shares.expire(now)
	for i := range c.Shares.Holders {
		if c.Shares.Holders[i].counted() > 0 {
			return false
		}
	}
	missing := int64(l.Capacity()) - c.Shares.Saved
	c.Shares, c.State = Shares{}, backend.State{}
	backend.Adjust(l, &c.State, now, now, missing)
	return true
}

// Divide answers a region that asks for its part of a bucket. What was used before the bucket was divided is missing from it.
func (c *Counter) Divide(at Reading, l *descriptor.Limit, d *Duty, q *ShareQuestion) ShareAnswer {
	if q.Epoch != d.Epoch || q.Epoch < c.Epoch {
		return ShareAnswer{Epoch: q.Epoch, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Result: Outdated}
	}
	if t, ok := c.enter(at, l, d); ok && !c.Shares.Begun && isBucket(l) {
		o := c.settle(&t.limit, at.Now, 0)
		c.Shares = Shares{Epoch: d.Epoch, From: d.From, Begun: true, Saved: int64(o.Remaining(l.Capacity())), SavedAt: at.Now}
		c.State = backend.State{}
	}
	return c.Shares.Exchange(at, l, d, q)
}

// enter decides whether the home may act on the counter, and fills a counter that is new to it.
func (c *Counter) enter(at Reading, l *descriptor.Limit, d *Duty) (terms, bool) {
	t := terms{limit: *l}
	if d.Grants {
		var ok bool
		if t, ok = termsOf(l); !ok {
			return t, false
		}
	}
	if !d.acts(at) || d.Epoch < c.Epoch {
		return t, false
	}
	c.Epoch = d.Epoch
	if c.From != d.From {
		// Another home counted until From, at most the whole limit. So for this one the counter is full then. As time passes, it
		// empties as always.
		*c = Counter{Epoch: d.Epoch, From: d.From}
		backend.Adjust(&t.limit, &c.State, d.From, d.From, int64(l.Capacity()))
	}
	return t, true
}

// settle makes one take. Denied hits do not count.
func (c *Counter) settle(l *descriptor.Limit, now, hits int64) backend.Outcome {
	takes, outcomes := [1]backend.Take{{Limit: l, Hits: hits}}, [1]backend.Outcome{}
	backend.Settle(takes[:], []*backend.State{&c.State}, outcomes[:], now)
	return outcomes[0]
}

// Exchange answers a question of another region: it takes in what the region reports, and grants what it can.
func (c *Counter) Exchange(at Reading, l *descriptor.Limit, d *Duty, q *Question) Answer {
	now := at.Now
	a := Answer{Epoch: q.Epoch, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Limit: l.Requests}
	if q.Epoch != d.Epoch || q.Epoch < c.Epoch {
		a.Result = Outdated
		return a
	}
	t, ok := c.enter(at, l, d)
	if !ok || !d.Grants {
		a.Result = Inactive
		return a
	}
	p := c.peer(q.Region)
	again := p.Incarnation == q.Incarnation && p.Number == q.Number
	if p.Incarnation == q.Incarnation && (q.Number < p.Number || again && q.Nonce != p.Nonce) || q.Incarnation == p.Former {
		a.Result = Stale
		return a
	}
	if p.Incarnation != q.Incarnation {
		p.Former, p.Incarnation, p.Settled = p.Incarnation, q.Incarnation, 0
	}
	p.Number, p.Nonce = q.Number, q.Nonce
	c.report(&t.limit, p, now, q)
	g := p.find(&Grant{Incarnation: q.Incarnation, Number: q.Number})
	if !again {
		g = c.grant(&t, d, p, now, q)
	}
	left := c.settle(&t.limit, now, 0)
	a.Remaining = int64(left.Remaining(l.Capacity()))
	if g == nil {
		switch {
		case c.learns(now):
			a.Result, a.RetryAfter = Inactive, c.Learning-now
		case a.Remaining > 0:
			a.Result = Enough
		default:
			a.Result, a.RetryAfter = Full, micros(left.MoreAfter)
		}
		return a
	}
	// The question may be a repetition of one that was asked first by an account that has been restored since: so what is valid
	// now counts, not what was valid then.
	a.Permits, a.Charged, a.Ends, a.ValidFor = g.Permits, g.Charged, g.Ends, max(g.Expires-now, 0)
	return a
}

// Fresh reports whether the home has not used the record yet.
func (c *Counter) Fresh() bool { return c.Epoch == 0 }

// Inherit is for a counter that is Fresh, and was counted by its region alone until now: so many hits are in use there. They count as
// used now, which is too strict at most. A counter that another home had begins full anyway.
func (c *Counter) Inherit(at Reading, l *descriptor.Limit, d *Duty, used int64) {
	t, ok := c.enter(at, l, d)
	if ok && d.From == 0 {
		backend.Adjust(&t.limit, &c.State, at.Now, at.Now, used)
	}
}

// Reset forgets what was used. What other regions hold and may still use stays charged.
func (c *Counter) Reset(at Reading, l *descriptor.Limit, d *Duty) bool {
	t, ok := c.enter(at, l, d)
	if !ok {
		return false
	}
	c.State = backend.State{}
	c.Shares.reset(l, at.Now)
	for i := range c.Peers {
		for k := range c.Peers[i].Grants {
			if g := &c.Peers[i].Grants[k]; at.Now < g.Ends {
				c.correct(&t.limit, at.Now, g, g.rest())
			}
		}
	}
	return true
}

// Expires is when nothing of the counter matters any more: neither what is used, nor what other regions hold, nor what they may still
// ask or report.
func (c *Counter) Expires(now int64, l *descriptor.Limit) int64 {
	last := max(now, c.Learning, backend.Expires(l, &c.State))
	if l.Algorithm == descriptor.SlidingLog { // it may be kept longer: termsOf
		last += l.Arithmetic.Length / logPart
	}
	for i := range c.Peers {
		for k := range c.Peers[i].Grants {
			last = max(last, c.Peers[i].Grants[k].Ends, c.Peers[i].Grants[k].Expires)
		}
	}
	for i := range c.Shares.Holders {
		last = max(last, c.Shares.Holders[i].Expires, c.Shares.Holders[i].LostExpires)
	}
	if c.Shares.Begun { // an empty bucket is full again
		last += int64(l.Capacity()/l.Requests+1) * micros(l.Window.Length())
	}
	return last + 2*pastLife
}

// Expires is when nothing of the account matters any more.
func (a *Account) Expires(now int64) int64 {
	last := now
	for i := range a.Grants {
		last = max(last, a.Grants[i].Expires)
	}
	return last + 2*pastLife
}

// peer returns what is known about a region.
func (c *Counter) peer(region string) *Peer {
	i, found := slices.BinarySearchFunc(c.Peers, region, func(p Peer, name string) int { return cmp.Compare(p.Region, name) })
	if !found {
		c.Peers = slices.Insert(c.Peers, i, Peer{Region: region})
	}
	return &c.Peers[i]
}

func (p *Peer) find(g *Grant) *Grant {
	for i := range p.Grants {
		if p.Grants[i].is(g) {
			return &p.Grants[i]
		}
	}
	return nil
}

// report takes in what an account says about its grants.
//
// A grant that the home knows and the account does not list was never applied, and never will be: the account has gone on to a later
// question. Or it was settled before, and nothing of it is left. Its rest is free again. A grant that the account lists and the home
// does not know was forgotten here: it is charged again.
func (c *Counter) report(l *descriptor.Limit, p *Peer, now int64, q *Question) {
	for i := range q.Grants {
		said := &q.Grants[i]
		g := p.find(said)
		if g == nil {
			if said.Number <= p.Settled || said.Charged < c.From {
				continue
			}
			p.Grants = append(p.Grants, Grant{
				Incarnation: said.Incarnation, Number: said.Number, Charged: said.Charged, Ends: said.Ends,
				Expires: min(said.Ends, now+longestLife),
			})
			g = &p.Grants[len(p.Grants)-1]
		}
		charged, more := g.Permits-g.Returned, said.Permits > g.Permits
		g.Permits = max(g.Permits, said.Permits)
		g.Used = max(g.Used, min(said.Used, g.rest()+g.Used))
		g.Returned = max(g.Returned, min(said.Returned, g.Permits-g.Used))
		// One correction: an algorithm that is full forgets what is added beyond, and would then lose what is taken away again.
		c.correct(l, now, g, g.Permits-g.Returned-charged)
		if more && now < g.Ends {
			c.Learning = now + pastLife
		}
	}
	for i := range p.Grants {
		g := &p.Grants[i]
		if g.Incarnation == q.Incarnation && g.Number < q.Number && !slices.ContainsFunc(q.Grants, func(said Grant) bool { return said.is(g) }) {
			c.correct(l, now, g, -g.rest())
			g.giveUp()
		}
	}
	p.forget(now)
}

// correct changes what a grant adds to its window. A bucket does not remember to which interval hits belong: after the end of the
// interval, its refill has made up for them already.
func (c *Counter) correct(l *descriptor.Limit, now int64, g *Grant, delta int64) {
	if !l.Interval || now < g.Ends {
		backend.Adjust(l, &c.State, now, g.Charged, delta)
	}
}

// forget drops grants of which nothing is left, and grants of lost accounts that have expired: these stay charged.
func (p *Peer) forget(now int64) {
	open := uint64(never)
	for i := range p.Grants {
		if g := &p.Grants[i]; g.Incarnation == p.Incarnation && g.rest() > 0 {
			open = min(open, g.Number)
		}
	}
	p.Grants = slices.DeleteFunc(p.Grants, func(g Grant) bool {
		if g.Incarnation != p.Incarnation {
			return now >= g.Expires
		}
		if g.Number < open {
			p.Settled = max(p.Settled, g.Number)
		}
		return g.Number < open
	})
}

// grant charges a new grant, or returns nil if there is nothing to grant.
func (c *Counter) grant(t *terms, d *Duty, p *Peer, now int64, q *Question) *Grant {
	if c.learns(now) {
		return nil
	}
	remaining := int64(t.limit.Capacity()) - c.settle(&t.limit, now, 0).Used
	most := min(remaining/int64(2*d.Regions), int64(t.limit.Capacity())/heldPart-c.held(now))
	n := max(min(q.Want, most), min(q.Need, remaining))
	if n <= 0 {
		return nil
	}
	o := c.settle(&t.limit, now, n)
	if !o.Allowed {
		return nil
	}
	g := Grant{Incarnation: q.Incarnation, Number: q.Number, Permits: n, Charged: now, Ends: now + t.life}
	if backend.PermitsOf(&backend.Take{Limit: &t.limit}).Kind == backend.PermitsOfWindow {
		g.Ends = now + micros(backend.Boundary(&t.limit, &o))
	}
	g.Expires = min(g.Ends, now+t.life)
	p.Grants = append(p.Grants, g)
	return &p.Grants[len(p.Grants)-1]
}

// learns reports whether the home waits to hear what it has forgotten. A clock that was set back does not prolong that.
func (c *Counter) learns(now int64) bool {
	return now < c.Learning && c.Learning <= now+pastLife
}

// held is how many permits other regions may hold.
func (c *Counter) held(now int64) (n int64) {
	for i := range c.Peers {
		for k := range c.Peers[i].Grants {
			if g := &c.Peers[i].Grants[k]; now < g.Expires {
				n += g.rest()
			}
		}
	}
	return n
}
