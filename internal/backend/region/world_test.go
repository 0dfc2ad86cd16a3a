package region_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/simkit"
)

const (
	ms     = int64(1_000)
	sec    = int64(1_000_000)
	minute = 60 * sec

	began = 1_800_000_000 * sec // what a right clock shows at the true time 0: 08:00:00 UTC
)

// setup is a system at its beginning.
type setup struct {
	seed     uint64
	regions  int
	replicas int // of each region
	rtt      int64
	deadline int64 // of a request
	bad      bool  // the network loses, repeats and delays messages
	counters []counted
	length   int64
	added    bool // the last region is added by an epoch later
	old      int  // one of so many processes is of a version that does not know the rules of an answer; 0: none

	weaken func(*world) // what a test breaks on purpose
}

// counted is a counter and how it is limited.
type counted struct {
	name  string
	limit descriptor.Limit // compiled
	mode  string           // escrow, home or share
}

// step is something that happens from outside.
type step struct {
	at      int64
	what    string
	region  int
	replica int
	counter int
	other   int
	n       int64
}

func (s step) String() string {
	return fmt.Sprintf("%12.6f %-8s region=%d replica=%d counter=%d other=%d n=%d", float64(s.at)/1e6, s.what, s.region, s.replica, s.counter, s.other, s.n)
}

// world is all regions, and what an observer with the true time sees.
type world struct {
	*simkit.World
	setup
	net       simkit.Network
	places    []*place
	epochs    []region.Epoch
	seen      observer
	questions int
}

// place is a region.
type place struct {
	w        *world
	index    int
	name     string
	clock    simkit.Clock
	kept     kept
	history  []kept // of the Redis, for a replica that lags
	replicas []*replica
	stepped  int64 // true time of the last step of the clock
}

// kept is what a Redis keeps.
type kept struct {
	at         int64
	accounts   []region.Account // by counter
	offered    []taken          // from them
	counters   []region.Counter
	holdings   []region.Holding
	shares     []region.Shares
	role       region.Role
	generation uint64
}

// taken is what was taken from an account since its record was written, which has a stamp.
type taken struct {
	stamp uint64
	n     int64
	last  int64 // when, by the clock of the Redis
}

// offer is what a process has read of an account.
type offer struct {
	region.Offer
	stamp, generation uint64
	noticed           bool
}

// account is what an account holds at a time.
func (k *kept) account(i int, now int64) *region.Account {
	a := k.accounts[i]
	a.Grants = slices.Clone(a.Grants)
	a.Spent(now, k.offered[i].n, now)
	return &a
}

// replica is a process of a region.
type replica struct {
	p      *place
	index  int
	up     bool
	boot   int
	paused int64 // until
	clock  simkit.Clock

	watch      region.Watch
	generation uint64
	ready      bool
	duty       region.Duty
	epoch      int // index of the list that it has read
	version    int // of the rules
	waiting    [][]*request
	offers     []*offer // of the accounts
	heard      heard
}

// heard is by which rules a home has answered the last question, which was sent then.
type heard struct {
	rules uint64
	sent  int64
}

// lasting is how long these are taken to be the home's rules.
const lasting = 1500 * ms

// request is one that waits for an answer of the home.
type request struct {
	counter int
	hits    int64
	until   int64
	arrived int64
	boot    int
	waited  bool
	done    bool
}

func newKept(n int) kept {
	return kept{
		accounts: make([]region.Account, n), offered: make([]taken, n), counters: make([]region.Counter, n),
		holdings: make([]region.Holding, n), shares: make([]region.Shares, n),
	}
}

func (k *kept) clone(at int64) kept {
	c := *k
	c.at = at
	c.accounts, c.offered, c.counters = slices.Clone(k.accounts), slices.Clone(k.offered), slices.Clone(k.counters)
	for i := range c.accounts {
		a := &c.accounts[i]
		a.Grants, a.Question.Grants = slices.Clone(a.Grants), slices.Clone(a.Question.Grants)
	}
	for i := range c.counters {
		x := &c.counters[i]
		x.State.Tail = slices.Clone(x.State.Tail)
		x.Peers = slices.Clone(x.Peers)
		for k := range x.Peers {
			x.Peers[k].Grants = slices.Clone(x.Peers[k].Grants)
		}
	}
	c.holdings, c.shares = slices.Clone(k.holdings), slices.Clone(k.shares)
	for i := range c.shares {
		c.shares[i].Holders = slices.Clone(c.shares[i].Holders)
	}
	c.role.Consents = slices.Clone(k.role.Consents)
	return c
}

// record is a value that a Redis keeps as bytes.
type record interface {
	AppendRecord(b []byte) []byte
	ReadRecord(b []byte) error
}

// keep writes all values as records, and reads them again: the Redis keeps nothing else.
func (k *kept) keep() {
	for i := range k.accounts {
		through(&k.accounts[i])
		through(&k.counters[i])
		through(&k.holdings[i])
		through(&k.shares[i])
	}
	through(&k.role)
}

func through(v record) {
	if err := v.ReadRecord(v.AppendRecord(nil)); err != nil {
		panic(fmt.Sprintf("%+v cannot be read from its record: %v", v, err))
	}
}

func newWorld(s setup, trace io.Writer) *world {
	w := &world{World: simkit.New(s.seed), setup: s}
	w.Trace = trace
	w.net = simkit.Network{World: w.World, Least: s.rtt * 4 / 10, Most: s.rtt * 6 / 10}
	if s.bad {
		w.net.Lost, w.net.Repeated, w.net.Late, w.net.Latest = 0.02, 0.02, 0.02, 40*sec
	}
	var names []string
	for i := range s.regions {
		names = append(names, string(rune('a'+i)))
	}
	first := names
	if s.added {
		first = names[:len(names)-1]
	}
	w.epochs = []region.Epoch{{Number: 1, Home: "a", Regions: first}}
	w.seen = newObserver(w)
	for i := range s.regions {
		p := &place{w: w, index: i, name: names[i], kept: newKept(len(s.counters)), stepped: math.MinInt64 / 2}
		p.clock = simkit.NewClock(began+w.Between(-5*sec, 5*sec), w.Between(-1000, 1000))
		w.places = append(w.places, p)
		for k := range s.replicas {
			r := &replica{p: p, index: k, clock: simkit.NewClock(w.Between(0, 1000*sec), w.Between(-1000, 1000))}
			p.replicas = append(p.replicas, r)
			r.start()
		}
		p.remember()
	}
	if s.weaken != nil {
		s.weaken(w)
	}
	w.check()
	return w
}

// check looks at all counters now and then.
func (w *world) check() {
	for i := range w.counters {
		w.seen.conserved(i)
	}
	w.After(w.Between(50*ms, 500*ms), w.check)
}

// remember keeps copies of what the Redis holds.
func (p *place) remember() {
	if len(p.history) > 40 {
		p.history = slices.Delete(p.history, 0, 1)
	}
	p.history = append(p.history, p.kept.clone(p.w.Now()))
	p.w.After(250*ms, p.remember)
}

func (w *world) placeOf(name string) *place { return w.places[name[0]-'a'] }

// limit is the limit of a counter in a version of the rules.
func (w *world) limit(counter, version int) *descriptor.Limit {
	return &w.seen.limits[counter][version].limit
}

// start begins a process.
func (r *replica) start() {
	*r = replica{p: r.p, index: r.index, up: true, boot: r.boot + 1, clock: r.clock, epoch: r.epoch, version: r.version,
		waiting: make([][]*request, len(r.p.w.counters)), offers: make([]*offer, len(r.p.w.counters))}
	r.tick(0)
}

// later runs something in a process, unless the process has died meanwhile. A process that is paused runs it when it continues.
func (r *replica) later(d int64, run func()) {
	boot, w := r.boot, r.p.w
	var try func()
	try = func() {
		switch {
		case !r.up || r.boot != boot:
		case w.Now() < r.paused:
			w.At(r.paused, try)
		default:
			run()
		}
	}
	w.After(d, try)
}

// call runs a script in the Redis of the region, and then something in the process.
func (r *replica) call(script func(at region.Reading), then func()) {
	w, p := r.p.w, r.p
	known, generation, rules := r.watch.Least(r.clock.Read(w.Now())), r.generation, r.rules()
	w.After(w.Between(100, 2000), func() {
		shown := p.clock.Read(w.Now())
		script(region.Reading{Now: shown, Least: known, Generation: generation, Rules: rules})
		p.kept.keep()
		r.later(w.Between(100, 2000), func() {
			if r.generation == generation {
				if now := r.clock.Read(w.Now()); shown >= known {
					r.watch.Saw(now, shown)
				} else { // the clock was set back
					r.setBack()
				}
			}
			if then != nil {
				then()
			}
		})
	})
}

// setBack raises the generation, unless another process has.
func (r *replica) setBack() {
	p, old := r.p, r.generation
	p.w.Note("%s%d notices that the clock was set back", p.name, r.index)
	r.ready, r.watch, r.duty = false, region.Watch{}, region.Duty{}
	var now uint64
	r.call(func(region.Reading) {
		if p.kept.generation <= old {
			p.kept.generation = old + 1
		}
		now = p.kept.generation
	}, func() { r.generation, r.ready = now, true })
}

// tick is what a process does every second.
func (r *replica) tick(n int) {
	w, p := r.p.w, r.p
	var generation uint64
	r.call(func(region.Reading) {
		p.kept.generation = max(p.kept.generation, r.generation) // a Redis that was flushed
		generation = p.kept.generation
	}, func() {
		if generation != r.generation {
			r.generation, r.watch, r.duty = generation, region.Watch{}, region.Duty{}
		}
		r.ready = true
		e := &w.epochs[r.epoch]
		if e.Home == p.name {
			r.act(e, n%5 == 0)
		}
		r.tend(e, 0, true)
		for i := range w.counters {
			if w.counters[i].mode == "share" && slices.Contains(e.Regions, p.name) {
				r.askShare(i)
			}
		}
	})
	r.later(sec, func() { r.tick(n + 1) })
}

// tend asks about the accounts from one on, if it is time. The first question is also asked to hear the home's rules.
func (r *replica) tend(e *region.Epoch, from int, probe bool) {
	w, p := r.p.w, r.p
	for i := from; i < len(w.counters); i++ {
		if w.counters[i].mode == "escrow" && e.Home != p.name && slices.Contains(e.Regions, p.name) {
			r.askFor(i, 0, probe, func(asked bool) { r.tend(e, i+1, probe && !asked) })
			return
		}
	}
}

// isOld reports whether the process is of a version that does not know the rules of an answer.
func (r *replica) isOld() bool { return r.p.w.old > 0 && (r.p.index+r.index)%r.p.w.old == 0 }

// rules returns what the process knows of the home's rules.
func (r *replica) rules() uint64 {
	if r.clock.Read(r.p.w.Now()) >= r.heard.sent+lasting {
		return 0
	}
	return r.heard.rules
}

// hear takes in by which rules a question was answered that was sent then.
func (r *replica) hear(rules uint64, sent int64) {
	if sent >= r.heard.sent && !r.isOld() {
		r.heard = heard{rules, sent}
	}
}

// act renews the role of a home.
func (r *replica) act(e *region.Epoch, ask bool) {
	w, p := r.p.w, r.p
	var duty region.Duty
	var asked int64
	r.call(func(at region.Reading) {
		if p.kept.role.Begin(at, e) {
			duty = p.kept.role.Duty(at, e)
		}
		asked = at.Now
	}, func() {
		if e.Number == w.epochs[r.epoch].Number {
			r.duty = duty
		}
		for _, name := range append(slices.Clone(e.Regions), e.Before...) {
			if !ask || name == p.name {
				continue
			}
			w.net.Send(p.name, name, func() {
				other := w.anyReplica(w.placeOf(name))
				if other == nil {
					return
				}
				ok := false
				other.call(func(region.Reading) { ok = other.p.kept.role.Consent(e.Number) }, func() {
					if ok {
						w.net.Send(name, p.name, func() {
							r.later(0, func() {
								r.call(func(at region.Reading) { p.kept.role.Consented(at, e, name, asked) }, nil)
							})
						})
					}
				})
			})
		}
	})
}

// anyReplica returns a process of a region that can take a message.
func (w *world) anyReplica(p *place) *replica {
	var up []*replica
	for _, r := range p.replicas {
		if r.up {
			up = append(up, r)
		}
	}
	if len(up) == 0 {
		return nil
	}
	return up[w.Rand.IntN(len(up))]
}

// view returns the duty of a process for a counter.
func (r *replica) view(counter int) *region.Duty {
	d := r.duty
	d.Grants = r.p.w.counters[counter].mode != "home"
	return &d
}

// request is a request that arrives at a process.
func (r *replica) request(counter int, hits int64) {
	w := r.p.w
	if !r.up || !r.ready || w.Now() < r.paused {
		return // a caller that nobody answers
	}
	q := &request{counter: counter, hits: hits, until: w.Now() + w.deadline, arrived: w.Now(), boot: r.boot}
	e := &w.epochs[r.epoch]
	switch {
	case !slices.Contains(e.Regions, r.p.name): // it is not one of the regions yet
	case w.counters[counter].mode == "share":
		r.takeShare(q)
	case e.Home == r.p.name:
		r.takeAtHome(q, func(allowed, acts bool) { w.seen.answered(r, q, allowed, !acts) })
	case w.counters[counter].mode == "home":
		q.waited = true
		w.net.Send(r.p.name, e.Home, func() {
			if h := w.anyReplica(w.placeOf(e.Home)); h != nil {
				h.later(0, func() {
					h.takeAtHome(q, func(allowed, acts bool) {
						w.net.Send(h.p.name, r.p.name, func() {
							r.later(0, func() { w.seen.answered(r, q, allowed, !acts) })
						})
					})
				})
			}
		})
		r.later(w.deadline, func() { w.seen.answered(r, q, false, true) })
	default:
		r.take(q)
	}
}

// takeAtHome makes a take from the counter of the home.
func (r *replica) takeAtHome(q *request, then func(allowed, acts bool)) {
	w, p := r.p.w, r.p
	allowed, acts := false, false
	d, l := r.view(q.counter), w.limit(q.counter, r.version)
	r.call(func(at region.Reading) {
		o, ok := p.kept.counters[q.counter].Take(at, l, d, q.hits)
		if allowed, acts = ok && o.Allowed, ok; allowed {
			w.seen.admitted(p, q.counter, q.hits, true)
		}
		w.Note("%s%d takes %d of %d at home: %v %v, used %d", p.name, r.index, q.hits, q.counter, ok, o.Allowed, o.Used)
	}, func() { then(allowed, acts) })
}

// step carries out a step on an account. Of what was taken without one, the process knows a part; the record carries over the rest.
func (r *replica) step(counter int, at region.Reading, run func(a *region.Account)) {
	w, k := r.p.w, &r.p.kept
	o := &k.offered[counter]
	known := o.n
	if known > 0 {
		known = w.Rand.Int64N(known + 1)
	}
	for {
		a := k.accounts[counter]
		a.Grants = slices.Clone(a.Grants)
		a.Spent(at.Now, known, o.last)
		before := a.AppendRecord(nil)
		run(&a)
		if bytes.Equal(before, a.AppendRecord(nil)) {
			return
		}
		if o.n-known <= a.Left(at.Now) {
			k.accounts[counter], *o = a, taken{w.Rand.Uint64(), o.n - known, o.last}
			return
		}
		known = o.n
	}
}

// take makes a take from what the account offers, or else a step on the account.
func (r *replica) take(q *request) { r.takeOffered(q, false) }

func (r *replica) takeOffered(q *request, again bool) {
	w, p, from := r.p.w, r.p, r.offers[q.counter]
	read := func() {
		r.call(func(at region.Reading) {
			a := &p.kept.accounts[q.counter]
			r.offers[q.counter] = nil
			if r.generation == at.Generation && a.Generation == at.Generation && at.Now >= a.Seen && !a.Fresh() {
				r.offers[q.counter] = &offer{Offer: a.Offer(at.Now), stamp: p.kept.offered[q.counter].stamp, generation: at.Generation}
			}
		}, func() { r.takeOffered(q, true) })
	}
	switch {
	case from != nil && from.generation == r.generation:
	case again:
		r.takeStep(q)
		return
	default:
		read()
		return
	}
	var allowed, same, trusted bool
	var now, left int64
	r.call(func(at region.Reading) {
		if q.done {
			return
		}
		o := &p.kept.offered[q.counter]
		now, same, trusted = at.Now, o.stamp == from.stamp, at.Now >= at.Least && at.Generation == r.generation
		allowed = same && now < from.Until && o.n+q.hits <= from.Left
		if allowed {
			w.seen.under(q.counter, &p.kept.accounts[q.counter])
			o.n, o.last = o.n+q.hits, at.Now
			if left = from.Left - o.n; trusted { // otherwise the process does not admit the request
				w.seen.admitted(p, q.counter, q.hits, false)
			}
		}
		w.Note("%s%d takes %d of %d from the offer: %v, %d are left", p.name, r.index, q.hits, q.counter, allowed, left)
	}, func() {
		switch {
		case q.done:
		case !trusted:
			w.seen.answered(r, q, false, true)
		case allowed:
			w.seen.answered(r, q, true, false)
			if (left < from.Low && now >= from.Again || now >= from.Due && (from.Rules == 0 || from.Rules != r.rules())) && !from.noticed {
				from.noticed = true
				r.askFor(q.counter, r.needs(q.counter), false, func(bool) { from.noticed = false })
			}
		case same && now < from.Until && from.Full && now < from.Again:
			w.seen.answered(r, q, false, false)
		case again:
			r.takeStep(q)
		default:
			read()
		}
	})
}

// takeStep makes a take from the account by a step.
func (r *replica) takeStep(q *request) {
	w, p := r.p.w, r.p
	var t region.Taken
	r.call(func(at region.Reading) {
		if q.done {
			return
		}
		r.step(q.counter, at, func(a *region.Account) { t = a.Take(at, q.hits) })
		if t.Allowed {
			w.seen.under(q.counter, &p.kept.accounts[q.counter])
			w.seen.admitted(p, q.counter, q.hits, false)
		}
		w.Note("%s%d takes %d of %d: %+v", p.name, r.index, q.hits, q.counter, t)
	}, func() {
		switch {
		case q.done:
		case t.Allowed || t.Full:
			w.seen.answered(r, q, t.Allowed, false)
		case w.Now() >= q.until:
			w.seen.answered(r, q, false, true)
		default:
			q.waited = true
			r.waiting[q.counter] = append(r.waiting[q.counter], q)
			r.later(50*ms, func() { r.again(q) }) // another process may have asked
			r.later(max(q.until-w.Now(), 0), func() { r.giveUp(q) })
		}
		if t.Due {
			r.ask(q.counter, r.needs(q.counter))
		}
	})
}

func (r *replica) needs(counter int) (n int64) {
	for _, q := range r.waiting[counter] {
		n += q.hits
	}
	return n
}

// again tries a request again, if it still waits.
func (r *replica) again(q *request) {
	if i := slices.Index(r.waiting[q.counter], q); i >= 0 {
		r.waiting[q.counter] = slices.Delete(r.waiting[q.counter], i, i+1)
		r.take(q)
	}
}

func (r *replica) giveUp(q *request) {
	if i := slices.Index(r.waiting[q.counter], q); i >= 0 {
		r.waiting[q.counter] = slices.Delete(r.waiting[q.counter], i, i+1)
		r.p.w.seen.answered(r, q, false, true)
	}
}

// ask sends a question about a counter to the home, if one is due.
func (r *replica) ask(counter int, need int64) { r.askFor(counter, need, false, func(bool) {}) }

func (r *replica) askFor(counter int, need int64, probe bool, then func(asked bool)) {
	w, p, e := r.p.w, r.p, &r.p.w.epochs[r.epoch]
	var q region.Question
	ok := false
	fresh, sent := w.Rand.Uint64()|1, int64(0)
	r.call(func(at region.Reading) {
		if probe {
			at.Rules = 0
		}
		r.step(counter, at, func(a *region.Account) { q, ok = a.Ask(at, p.name, e.Number, need, fresh) })
	}, func() {
		if then(ok); !ok {
			return
		}
		w.questions++
		sent = r.clock.Read(w.Now())
		if w.Trace != nil {
			w.Note("%s%d asks about %d: %d/%d want %d need %d %v", p.name, r.index, counter, q.Incarnation%1000, q.Number, q.Want, q.Need, brief(q.Grants))
		}
		w.net.Send(p.name, e.Home, func() {
			if h := w.anyReplica(w.placeOf(e.Home)); h != nil {
				h.later(0, func() { h.exchange(counter, q, r, sent) })
			}
		})
	})
}

func brief(grants []region.Grant) (s []string) {
	for _, g := range grants {
		s = append(s, fmt.Sprintf("%d:%d-%d-%d", g.Number, g.Permits, g.Used, g.Returned))
	}
	return s
}

// exchange answers a question that asker has sent.
func (r *replica) exchange(counter int, q region.Question, asker *replica, sent int64) {
	w, p := r.p.w, r.p
	q.Grants = slices.Clone(q.Grants)
	d, l, rules := r.view(counter), w.limit(counter, r.version), uint64(r.version+1)
	if r.isOld() {
		rules = 0
	}
	var a region.Answer
	r.call(func(at region.Reading) {
		c := &p.kept.counters[counter]
		a = c.Exchange(at, l, d, &q)
		a.Rules = rules
		if a.Result == region.Granted {
			w.seen.granted(p, counter, &a)
		}
		w.Note("%s%d answers %s about %d: %d/%d result %d, %d permits for %d, left %d", p.name, r.index, q.Region, counter, a.Incarnation%1000, a.Number, a.Result, a.Permits, a.ValidFor, a.Remaining)
	}, func() {
		w.net.Send(p.name, q.Region, func() {
			to := asker
			if !to.up {
				return
			}
			to.later(0, func() {
				to.hear(a.Rules, sent)
				to.apply(counter, a)
			})
		})
	})
}

// apply takes in an answer.
func (r *replica) apply(counter int, a region.Answer) {
	w, p := r.p.w, r.p
	r.call(func(at region.Reading) {
		ok := false
		r.step(counter, at, func(x *region.Account) { ok = x.Apply(at, &a) })
		w.Note("%s%d applies %d/%d about %d: %v", p.name, r.index, a.Incarnation%1000, a.Number, counter, ok)
	}, func() {
		all := r.waiting[counter]
		r.waiting[counter] = nil
		for _, q := range all {
			r.take(q)
		}
	})
}

// takeShare makes a take from the region's part of a bucket.
func (r *replica) takeShare(q *request) {
	w, p, l := r.p.w, r.p, r.p.w.limit(q.counter, r.version)
	var t region.Taken
	r.call(func(at region.Reading) {
		h := &p.kept.holdings[q.counter]
		if t = h.Take(at, l, q.hits); t.Allowed {
			w.seen.admitted(p, q.counter, q.hits, false)
		}
		w.Note("%s%d takes %d of the share of %d: %+v", p.name, r.index, q.hits, q.counter, t)
	}, func() {
		w.seen.answered(r, q, t.Allowed, !t.Full)
		if t.Due {
			r.askShare(q.counter)
		}
	})
}

// askShare asks the home for the region's part of a bucket, if it is time.
func (r *replica) askShare(counter int) {
	w, p, e, l := r.p.w, r.p, &r.p.w.epochs[r.epoch], r.p.w.limit(counter, r.version)
	var q region.ShareQuestion
	ok, fresh := false, w.Rand.Uint64()|1
	r.call(func(at region.Reading) {
		q, ok = p.kept.holdings[counter].Ask(at, l, p.name, e.Number, fresh)
	}, func() {
		if !ok {
			return
		}
		w.questions++
		w.Note("%s%d asks for its share of %d: %+v", p.name, r.index, counter, q)
		w.net.Send(p.name, e.Home, func() {
			if h := w.anyReplica(w.placeOf(e.Home)); h != nil {
				h.later(0, func() { h.divide(counter, q, r) })
			}
		})
	})
}

// divide answers a question about a share.
func (r *replica) divide(counter int, q region.ShareQuestion, asker *replica) {
	w, p, d, l := r.p.w, r.p, r.view(counter), r.p.w.limit(counter, r.version)
	var a region.ShareAnswer
	r.call(func(at region.Reading) {
		a = p.kept.shares[counter].Exchange(at, l, d, &q)
		w.Note("%s%d answers %s: %+v", p.name, r.index, q.Region, a)
	}, func() {
		w.net.Send(p.name, q.Region, func() {
			if asker.up {
				asker.later(0, func() {
					asker.call(func(at region.Reading) {
						ok := asker.p.kept.holdings[counter].Apply(at, w.limit(counter, asker.version), &a)
						w.Note("%s%d applies share %d: %v", asker.p.name, asker.index, a.Number, ok)
					}, nil)
				})
			}
		})
	})
}

// do carries out a step.
func (w *world) do(s step) {
	p := w.places[s.region]
	r := p.replicas[s.replica%len(p.replicas)]
	if s.what != "request" {
		w.Note("%v", s)
	}
	switch s.what {
	case "request":
		r.request(s.counter, s.n)
	case "cut":
		w.net.Cut(p.name, w.places[s.other].name, w.Now()+s.n)
	case "alone":
		for _, o := range w.places {
			w.net.Cut(p.name, o.name, w.Now()+s.n)
			w.net.Cut(o.name, p.name, w.Now()+s.n)
		}
	case "pause":
		r.paused = w.Now() + s.n
	case "kill":
		r.up = false
		for _, all := range r.waiting {
			for _, q := range all {
				q.done = true
			}
		}
		w.After(s.n, func() { w.restart(r) })
	case "flush":
		empty := newKept(len(w.counters))
		w.seen.forgets(p, &empty)
		p.kept = newKept(len(w.counters))
	case "failover":
		i := len(p.history) - 1
		for i > 0 && p.history[i].at > w.Now()-s.n {
			i--
		}
		w.seen.forgets(p, &p.history[i])
		p.kept = p.history[i].clone(w.Now())
		if s.other != 0 {
			w.stepClock(p, int64(s.other)*ms)
		}
	case "clock":
		w.stepClock(p, s.n)
	case "drift":
		p.clock.Drift(w.Now(), s.n)
	case "move":
		w.move(s)
	case "rules":
		w.rules(s)
	case "heal":
		w.net.Heal()
	}
}

func (w *world) stepClock(p *place, by int64) {
	p.clock.Step(w.Now(), by)
	p.stepped = w.Now()
	w.seen.steps(p, by)
}

// restart starts a process again. A process that has not read the clock before it was set back cannot notice it, so it does not start
// until the others have.
func (w *world) restart(r *replica) {
	if w.Now() < r.p.stepped+3*sec {
		w.At(r.p.stepped+3*sec, func() { w.restart(r) })
		return
	}
	if !r.up {
		r.start()
	}
}

// move makes another region the home, or adds the last region. Processes read the new list one after another.
func (w *world) move(s step) {
	last := w.epochs[len(w.epochs)-1]
	e := region.Epoch{Number: last.Number + 1, Home: w.places[s.region].name}
	for _, p := range w.places {
		e.Regions = append(e.Regions, p.name)
	}
	if e.Home != last.Home {
		e.Before = last.Regions
		e.Stopped = s.other == 1
	}
	if e.Stopped { // the operator has looked
		old := w.placeOf(last.Home)
		for _, r := range old.replicas {
			r.up = false
		}
		w.After(2*minute, func() {
			for _, r := range old.replicas {
				r.epoch = len(w.epochs) - 1
				w.restart(r)
			}
		})
	}
	w.epochs = append(w.epochs, e)
	index := len(w.epochs) - 1
	for _, p := range w.places {
		for _, r := range p.replicas {
			d := w.Between(0, 20*sec)
			if w.Chance(0.1) {
				d = w.Between(0, 100*sec)
			}
			w.After(d, func() {
				if r.epoch < index {
					r.epoch, r.duty = index, region.Duty{}
				}
			})
		}
	}
}

// rules changes a limit. Processes read the rules one after another.
func (w *world) rules(s step) {
	version := w.seen.change(s.counter, uint64(s.n))
	for _, p := range w.places {
		for _, r := range p.replicas {
			w.After(w.Between(0, 5*sec), func() {
				r.version = max(r.version, version)
				w.seen.read(p)
			})
		}
	}
	w.After(6*sec, func() { w.seen.changed(s.counter, version) })
}

// run carries out all steps.
func (s setup) run(steps []step, trace io.Writer) *world {
	w := newWorld(s, trace)
	for _, step := range steps {
		w.At(step.at, func() { w.do(step) })
	}
	w.Run(s.length)
	w.seen.end()
	return w
}
