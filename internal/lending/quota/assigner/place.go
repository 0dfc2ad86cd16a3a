package assigner

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// fixedTTL is the lifetime of an assignment that does not depend on other clients. It is replaced immediately if the
// rules change.
const fixedTTL = 5 * time.Minute

// answer is the meaning of the rules for a bucket.
type answer struct {
	key   string           // key of its pool
	fixed quota.Assignment // set unless rated
	rated bool
	rate  quota.Rate
	even  quota.Rate // the limit spread evenly over its window: the rate when counters cannot be read
	saved float64    // remaining tokens
	shut  time.Duration
	short bool
	looks bool
	bound float64
	words []string
	retry bool

	cost  float64 // hits of one request, at least 1
	unit  float64 // hits of one unit that the store divides among replicas: the same in all of them
	terms string  // identifies the terms in the pool; empty unless rated
}

// answerOf returns the meaning of the rules for a bucket.
func answerOf(f *found) answer {
	q := &f.quota
	own := answer{key: "b" + strconv.FormatUint(f.bucket.serial, 36), cost: 1, unit: 1}
	fixed := func(k quota.Kind, ttl time.Duration) answer {
		own.fixed = quota.Assignment{Kind: k, TTL: ttl}
		if k == quota.None {
			own.fixed.TTL = 0
		}
		return own
	}
	switch {
	case errors.Is(f.err, limiter.ErrNoRules):
		own.retry = true
		return fixed(quota.None, 0)
	case f.err != nil:
		own.retry = true
		switch q.OnError {
		case descriptor.OnErrorAllow:
			return fixed(quota.AllowAll, quota.TTL)
		case descriptor.OnErrorDeny:
			return fixed(quota.DenyAll, quota.TTL)
		default:
			return fixed(quota.None, 0)
		}
	case q.Blocked:
		return fixed(quota.DenyAll, fixedTTL)
	case len(q.Enforced) == 0:
		return fixed(quota.AllowAll, fixedTTL)
	}
	own.cost = float64(max(q.HitCost, 1))
	if q.Rule.HitCost().Constant() && q.Rule.CountedWith() == "" {
		own.unit = own.cost // all buckets of these counters have the same cost
	}
	var terms strings.Builder
	fmt.Fprintf(&terms, "%s %d %d", q.Rule.Path, q.HitCost, q.OnError)
	for _, k := range q.Enforced {
		r, ok := quota.RateOf(&k.Limit, q.HitCost)
		if !ok {
			continue // concurrency has no rate
		}
		remaining := float64(k.Remaining) / own.cost
		length, even := k.Limit.Window.Length(), r
		if r.PerSecond > 0 && length >= longWindow && k.Limit.Windowed() {
			r.PerSecond = max(r.PerSecond, remaining/horizon.Seconds())
		}
		if !own.rated {
			own.rate, own.even, own.saved = r, even, remaining
		} else {
			own.rate, own.even, own.saved = own.rate.Both(r), own.even.Both(even), min(own.saved, remaining)
		}
		own.rated = true
		own.short = own.short || length < shortWindow
		own.looks = own.looks || length >= shortWindow || k.Limit.Penalty != nil
		own.shut = max(own.shut, k.ClosedFor(slack))
		own.words = append(own.words, k.Words())
		own.bound = max(own.bound, boundOf(&k.Limit))
		fmt.Fprintf(&terms, "; %s, %d", k.Words(), k.Limit.Capacity())
	}
	switch {
	case !own.rated:
		return fixed(quota.None, 0)
	case own.rate.PerSecond == 0:
		own.rated = false
		return fixed(quota.DenyAll, fixedTTL)
	}
	own.key, own.terms = "l"+q.Key, terms.String() // the same key in all replicas
	return own
}

// terms are the meaning of the rules for some buckets of a pool. Counters do not determine them: the buckets may differ
// in the numbers of the limits, in the cost of a request, in the rule and in on_error, and one may use counters that
// another does not use.
type terms struct {
	means   answer // the last answer for any of the buckets
	rule    *descriptor.Rule
	onError descriptor.OnError
	sample  *bucket // one of the buckets
	buckets int
}

// limits returns the limits in words.
func (t *terms) limits() string { return strings.Join(t.means.words, "; ") }

// accept assigns a bucket of the pool to its terms.
func (p *pool) accept(b *bucket, x *answer, f *found) {
	t := b.terms
	if t == nil || t.means.terms != x.terms {
		p.dismiss(b)
		i := slices.IndexFunc(p.terms, func(t *terms) bool { return t.means.terms == x.terms })
		if i < 0 {
			i = len(p.terms)
			p.terms = append(p.terms, &terms{sample: b})
		}
		t = p.terms[i]
		t.buckets++
		b.terms = t
	}
	t.means, t.rule, t.onError = *x, f.quota.Rule, f.quota.OnError
}

// readmit restores the terms of a bucket that has subscriptions again. They are looked up again soon.
func (a *Assigner) readmit(now time.Time, b *bucket) {
	t, p := b.was, b.pool
	if b.terms != nil || t == nil {
		return
	}
	p.accept(b, &t.means, &found{quota: limiter.QuotaBucket{Rule: t.rule, Counters: limiter.Counters{OnError: t.onError}}})
	if !p.unread {
		p.update(now, a.o.Store == nil)
	}
	a.resolve(b)
}

// dismiss removes a bucket from its terms, and the terms if no other bucket of the pool has them.
func (p *pool) dismiss(b *bucket) {
	t := b.terms
	if b.terms = nil; t == nil {
		return
	}
	b.was = t
	if t.buckets--; t.buckets == 0 {
		p.terms = slices.DeleteFunc(p.terms, func(other *terms) bool { return other == t })
		p.stale = true
		return
	}
	if t.sample == b {
		t.sample = p.buckets[slices.IndexFunc(p.buckets, func(other *bucket) bool { return other.terms == t })]
	}
}

// samples returns one bucket for each of the terms.
func (p *pool) samples() (all []*bucket) {
	for _, t := range p.terms {
		all = append(all, t.sample)
	}
	return all
}

// strictness orders on_error. The strictest of a pool's buckets decides for all.
var strictness = [...]int{descriptor.OnErrorDefault: 1, descriptor.OnErrorError: 1, descriptor.OnErrorDeny: 3,
	descriptor.OnErrorLocal: 2, descriptor.OnErrorAllow: 0}

// combine returns the answer that is safe for all buckets of a pool. Its counters deny when the smallest of their
// limits is used up, and the next request may belong to any bucket. So the smallest rate counts, the smallest burst,
// the highest cost, and the strictest on_error.
func (p *pool) combine() (all answer) {
	for i, t := range p.terms {
		x := &t.means
		if i == 0 {
			all, p.onError = *x, t.onError
			continue
		}
		all.rate, all.even, all.saved = all.rate.Both(x.rate), all.even.Both(x.even), min(all.saved, x.saved)
		all.shut, all.bound, all.cost = max(all.shut, x.shut), max(all.bound, x.bound), max(all.cost, x.cost)
		all.short, all.looks = all.short || x.short, all.looks || x.looks
		if strictness[t.onError] > strictness[p.onError] {
			p.onError = t.onError
		}
	}
	return all
}

// A limit whose window is at least longWindow need not be spread evenly over its window, because its counter shows the
// remaining hits in time. Clients get the rate they need as long as the remaining hits suffice for horizon: the life of
// an assignment and a report.
const (
	longWindow = 2 * time.Minute
	horizon    = quota.TTL + renewEvery
)

// place puts a bucket into the pool of its limit, and returns the pool.
func (a *Assigner) place(now time.Time, f *found) *pool {
	b := f.bucket
	if a.buckets[b.key] != b {
		return nil // it was removed since
	}
	b.entries = f.entries
	// its clients keep their places, so that they are served again once the counters can be read
	if p := b.pool; p != nil && p.rated && f.err != nil {
		b.unread = true
		p.failed(now, f.quota.OnError)
		return p
	}
	if b.pool != nil {
		a.readAgain(b.pool)
	}
	if f.err == nil && f.quota.Rule == nil && !f.quota.Blocked {
		a.release(now, b, f.quota.Domain)
		return nil
	}
	x := answerOf(f)
	p := a.pools[x.key]
	if p == nil {
		p = a.newPool(now, &x)
	}
	moved := b.pool != p
	if moved {
		a.keep(-b.reserved)
		b.reserved = 0
		if b.pool != nil {
			a.moveOut(now, b)
		}
		p.join(b)
	}
	p.accept(b, &x, f)
	p.looked, p.used = now, false
	p.update(now, a.o.Store == nil) // before clients enter it
	if moved {
		for _, s := range b.subscriptions {
			a.enter(now, s)
		}
	}
	return p
}

func (a *Assigner) newPool(now time.Time, x *answer) *pool {
	p := &pool{key: x.key, position: -1, made: now, worth: x.cost / x.unit}
	if a.o.Store != nil && x.rated {
		p.planner = quota.NewSharedBucket(now, x.rate)
	} else {
		p.planner = quota.NewBucket(now, x.rate, x.saved)
	}
	a.pools[x.key] = p
	a.keep(p.bytes())
	a.due.set(p, now.Add(longest))
	return p
}

// update applies the current answers for all buckets.
func (p *pool) update(now time.Time, alone bool) {
	x := p.combine()
	p.stale = false
	p.rated, p.even, p.short, p.closes = x.rated, x.even.PerSecond, x.short, x.looks
	p.retry, p.reopens = time.Time{}, time.Time{}
	if x.retry {
		p.retry = now.Add(retryEvery)
	}
	if x.rated {
		if worth := x.cost / x.unit; worth != p.worth {
			p.planner.Reprice(now, worth/p.worth)
			p.worth = worth
		}
		p.planner.SetRemaining(x.saved)
		if alone {
			p.planner.SetRate(now, x.rate)
		} else {
			p.planner.SetWholeRate(x.rate)
		}
	}
	switch {
	case x.shut > 0:
		p.reopens = now.Add(x.shut)
		p.planner.Fix(quota.Assignment{Kind: quota.DenyAll, TTL: quota.TTL})
	case x.rated:
		p.planner.Divide()
	default:
		p.planner.Fix(x.fixed)
	}
}

// failed lets on_error decide until the limit's counters can be read.
func (p *pool) failed(now time.Time, onError descriptor.OnError) {
	if p.unread = true; len(p.terms) == 1 { // otherwise the strictest of all terms applies
		p.onError = onError
	}
	p.looked, p.used = now, false
	p.retry = now.Add(retryEvery)
	if !p.reopens.After(now) {
		p.reopens = time.Time{}
	}
	if onError != descriptor.OnErrorLocal {
		p.fixOnError()
		return
	}
	p.planner.Slow(now, p.even) // without its counter, the remaining hits of a long window are unknown
	if p.reopens.IsZero() {
		p.planner.Divide()
	}
}

// readAgain schedules the buckets of a limit whose counters could not be read, after one of them was read.
func (a *Assigner) readAgain(p *pool) {
	if !p.unread {
		return
	}
	p.unread, p.retry = false, time.Time{}
	for _, b := range p.buckets {
		if b.unread {
			b.unread = false
			a.resolve(b)
		}
	}
}

// moveOut removes a bucket from its pool. The assignments of its clients count there until they expire.
func (a *Assigner) moveOut(now time.Time, b *bucket) {
	old := b.pool
	for _, s := range b.subscriptions {
		if s.member != nil {
			old.planner.Leave(now, s.member)
			s.member = nil
		}
	}
	old.leave(b)
	a.planSoon(now, old)
}

// enter adds a subscription to its bucket's pool.
//
// After a restart all clients return within a few seconds. If an idle one came first, it would get the whole limit, and
// busy ones would have nothing until its next report. So an idle client enters with its next report; until then it uses
// its present assignment.
func (a *Assigner) enter(now time.Time, s *subscription) {
	p := s.bucket.pool
	if s.back && s.demand == 0 && p.rated && !s.deferred && now.Sub(p.made) < renewEvery {
		s.deferred = true
		return
	}
	s.deferred = false
	s.member = p.planner.Join(now)
	s.member.Owner, s.member.Since = s, s.since
	if s.rate > 0 && p.rated && !p.planner.Return(now, s.member, s.rate) && a.o.Store != nil {
		p.planner.Claim(now, s.member, s.rate)
	}
	if s.allowed > 0 || s.denied > 0 {
		allowed := s.plausible(now, s.allowed)
		// otherwise they were sent before it joined: they are its first demand, and not part of later measurements
		if !s.back {
			p.planner.Report(now, s.member, allowed, s.denied)
		}
		s.bucket.addCharge(allowed)
		s.allowed, s.denied = 0, 0
	}
	if s.back && p.rated {
		s.member.Measured(s.demand)
		s.back, s.rate = false, 0
	}
	a.planNewcomer(now, p)
}

// boundOf returns the most requests that clients may pass in a window's length, as a multiple of the limit's own bound
// for that time. For buckets the two are equal. A fixed window lets twice the limit pass around its end, as clients
// may. A sliding window never does.
func boundOf(l *descriptor.Limit) float64 {
	switch {
	case !l.Slides():
		return 1
	case l.Window.Length() >= longWindow: // its counter shows the remaining hits, once clients have reported
		return 1 + slack.Seconds()/horizon.Seconds()
	default:
		return 2
	}
}
