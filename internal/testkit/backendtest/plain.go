package backendtest

import (
	"math/big"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// plain is the expected content of a counter, as the documentation defines it, in numbers of any size. It shares no
// code with the stores: it finds the time until an event by trying times. Its clock does not go back.
type plain struct {
	limit *descriptor.Limit

	start, end int64    // fixed window: the window of count; interval: the window of the missing tokens
	count      *big.Int // fixed window: hits; interval: missing tokens

	subs map[int64]*big.Int // sliding window: hits by the number of the sub-window

	log []int64 // sliding log: time of each hit in quanta, rounded up

	level *big.Rat // bucket: amount in use at start
}

func newPlain(l *descriptor.Limit) *plain {
	return &plain{limit: l, count: new(big.Int), subs: make(map[int64]*big.Int), level: new(big.Rat)}
}

func (p *plain) capacity() *big.Int { return new(big.Int).SetUint64(p.limit.Capacity()) }

func (p *plain) length() int64 { return p.limit.Window.Length().Microseconds() }

// bounds returns the start and the end of the window, on the clock or the calendar, that contains a time. No zone of
// these tests sets its clocks at midnight, so a day has one midnight.
func (p *plain) bounds(at int64) (start, end int64) {
	w := p.limit.Window
	if w.Location == nil {
		start = at / p.length() * p.length()
		return start, start + p.length()
	}
	n := int(max(w.Multiplier, 1))
	local := time.UnixMicro(at).In(w.Location)
	y, m, d := local.Date()
	date := func(y int, m time.Month, d int) int64 { return time.Date(y, m, d, 0, 0, 0, 0, w.Location).UnixMicro() }
	switch w.Unit {
	case descriptor.Year:
		first := 1970 + (y-1970)/n*n
		return date(first, 1, 1), date(first+n, 1, 1)
	case descriptor.Month:
		first := ((y-1970)*12 + int(m) - 1) / n * n
		return date(1970, time.Month(first+1), 1), date(1970, time.Month(first+n+1), 1)
	case descriptor.Week:
		// The weeks are counted from the one of 1 January 1970, which started on Monday, 29 December, or on Sunday, 28
		// December 1969.
		begin := -3
		if w.WeekStart == 6 {
			begin = -4
		}
		first := (days(y, m, d)-begin)/(7*n)*(7*n) + begin
		return date(1970, 1, 1+first), date(1970, 1, 1+first+7*n)
	default:
		first := days(y, m, d) / n * n
		return date(1970, 1, 1+first), date(1970, 1, 1+first+n)
	}
}

// window returns the window in which hits of a time count. If windows start with a hit, it is the one in use, or starts
// now.
func (p *plain) window(at int64) (start, end int64) {
	switch {
	case !p.limit.FirstHit:
		return p.bounds(at)
	case at < p.end && p.count.Sign() > 0:
		return p.start, p.end
	default:
		return at, at + p.length()
	}
}

// days is the number of days of a date since 1 January 1970.
func days(y int, m time.Month, d int) int {
	return int(time.Date(y, m, d, 12, 0, 0, 0, time.UTC).Unix() / (24 * 60 * 60))
}

// used is how many hits are in use at a time, if nothing happens until then.
func (p *plain) used(at int64) *big.Int {
	l := p.limit
	switch {
	case l.Algorithm == descriptor.FixedWindow:
		if at >= p.end {
			return new(big.Int)
		}
		return p.count
	case l.Algorithm == descriptor.SlidingWindow:
		return p.estimate(at)
	case l.Algorithm == descriptor.SlidingLog:
		q := l.Arithmetic.Quantum
		n := int64(0)
		for _, hit := range p.log {
			if hit > at/q-p.length()/q {
				n++
			}
		}
		return big.NewInt(n)
	case l.Interval:
		return p.missing(at)
	default:
		return ceil(p.left(at))
	}
}

// left returns the amount in use in a bucket at a time.
func (p *plain) left(at int64) *big.Rat {
	drained := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(at-p.start), new(big.Int).SetUint64(p.limit.Requests)),
		big.NewInt(p.length()))
	if drained.Cmp(p.level) >= 0 {
		return new(big.Rat)
	}
	return drained.Sub(p.level, drained)
}

func (p *plain) missing(at int64) *big.Int {
	refills := big.NewInt((at - p.start) / p.length())
	n := new(big.Int).Sub(p.count, refills.Mul(refills, new(big.Int).SetUint64(p.limit.Requests)))
	if n.Sign() < 0 {
		n.SetInt64(0)
	}
	return n
}

// estimate returns the estimate of a sliding window: the sub-window that is leaving counts in proportion to the part of
// it that is less than a window ago.
func (p *plain) estimate(at int64) *big.Int {
	l := p.limit
	n, quanta := int64(max(l.Precision, 1)), l.Arithmetic.Length/l.Arithmetic.Quantum
	now := at / l.Arithmetic.Quantum
	current := now / quanta
	sum := new(big.Int)
	for i := range n {
		if hits := p.subs[current-i]; hits != nil {
			sum.Add(sum, hits)
		}
	}
	if hits := p.subs[current-n]; hits != nil {
		part := new(big.Int).Mul(hits, big.NewInt(quanta-1-now%quanta))
		sum.Add(sum, part.Quo(part, big.NewInt(quanta)))
	}
	return sum
}

// fits reports whether hits would pass at a time.
func (p *plain) fits(at int64, hits *big.Int) bool {
	l := p.limit
	if l.Algorithm != descriptor.SlidingWindow && l.Algorithm != descriptor.FixedWindow &&
		l.Algorithm != descriptor.SlidingLog && !l.Interval {
		sum := new(big.Rat).SetInt(hits)
		return sum.Add(sum, p.left(at)).Cmp(new(big.Rat).SetInt(p.capacity())) <= 0
	}
	return new(big.Int).Add(p.used(at), hits).Cmp(p.capacity()) <= 0
}

// until returns the time from now until something is true, which then stays true.
func until(now int64, is func(at int64) bool) time.Duration {
	if is(now) {
		return 0
	}
	most := int64(1)
	for !is(now + most) {
		most *= 2
	}
	least := most / 2 // not yet
	for most-least > 1 {
		if middle := least + (most-least)/2; is(now + middle) {
			most = middle
		} else {
			least = middle
		}
	}
	return time.Duration(most) * time.Microsecond
}

// take adds hits, and returns the outcome that a store must give.
func (p *plain) take(now, n int64, countDenied bool) backend.Outcome {
	l, hits := p.limit, big.NewInt(n)
	before := p.used(now)
	o := backend.Outcome{Before: before.Int64(), Allowed: n < 0 || p.fits(now, hits)}
	_, end := p.window(now)
	switch {
	case o.Allowed:
	case hits.Cmp(p.capacity()) > 0:
		o.RetryAfter = backend.Never
	default:
		o.RetryAfter = until(now, func(at int64) bool { return p.fits(at, hits) })
	}
	bucket := l.Has(descriptor.SettingBurst)
	if !bucket && n < 0 && new(big.Int).Add(before, hits).Sign() < 0 {
		hits.SetInt64(0) // a refund of hits of a window that is over
	}
	if l.Algorithm == descriptor.LeakyBucket && o.Allowed && n > 0 && l.NoDelay != descriptor.NoDelayAll {
		turn := new(big.Rat).Sub(p.left(now), new(big.Rat).SetInt64(int64(l.NoDelay)))
		if turn.Sign() > 0 {
			turn.Mul(turn, new(big.Rat).SetFrac(big.NewInt(p.length()), new(big.Int).SetUint64(l.Requests)))
			o.Delay = time.Duration(ceil(turn).Int64()) * time.Microsecond
		}
	}
	if hits.Sign() != 0 && (o.Allowed || countDenied &&
		(l.Algorithm == descriptor.FixedWindow || l.Algorithm == descriptor.SlidingLog)) {
		p.add(now, hits, o.Allowed)
	}
	o.Used = p.used(now).Int64()
	if fewer := big.NewInt(max(0, min(o.Used, p.capacity().Int64())-1)); o.Used > 0 {
		o.MoreAfter = until(now, func(at int64) bool { return p.used(at).Cmp(fewer) <= 0 })
	}
	if l.Algorithm == descriptor.SlidingWindow {
		o.PartEnds = time.Duration(l.Arithmetic.Length-now%l.Arithmetic.Length) * time.Microsecond
	}
	switch l.Algorithm {
	case descriptor.FixedWindow: // the end of the window, even if nothing is used
		o.MoreAfter = time.Duration(end-now) * time.Microsecond
		o.ResetAfter = time.Duration(end-now) * time.Microsecond
	default:
		o.ResetAfter = until(now, func(at int64) bool { return p.used(at).Sign() == 0 })
	}
	return o
}

// add adds hits to the content.
func (p *plain) add(now int64, hits *big.Int, allowed bool) {
	l := p.limit
	switch {
	case l.Algorithm == descriptor.FixedWindow:
		if now >= p.end {
			p.count = new(big.Int)
		}
		p.start, p.end = p.window(now)
		most := big.NewInt(1<<40 - 1) // counted at most
		if l.Requests >= 1<<32 {
			most.SetInt64(1 << 53)
		}
		if p.count = new(big.Int).Add(p.count, hits); p.count.Cmp(most) > 0 {
			p.count = most
		}
	case l.Algorithm == descriptor.SlidingWindow:
		p.addToSubWindows(now, hits)
	case l.Algorithm == descriptor.SlidingLog:
		p.addToLog(now, hits.Int64(), allowed)
	case l.Interval:
		missing := p.missing(now)
		switch {
		case l.FirstHit && missing.Sign() == 0:
			p.start = now
		case l.FirstHit:
			p.start += (now - p.start) / p.length() * p.length()
		default:
			p.start = now / p.length() * p.length()
		}
		if p.count = missing.Add(missing, hits); p.count.Sign() < 0 {
			p.count.SetInt64(0)
		}
	default:
		p.level = new(big.Rat).Add(p.left(now), new(big.Rat).SetInt(hits))
		if p.start = now; p.level.Sign() < 0 {
			p.level = new(big.Rat)
		}
	}
}

// addToSubWindows adds hits to the current sub-window, or takes them back from the newest ones that have any.
func (p *plain) addToSubWindows(now int64, hits *big.Int) {
	n, current := int64(max(p.limit.Precision, 1)), now/p.limit.Arithmetic.Length
	rest := new(big.Int).Set(hits)
	for i := int64(0); i <= n && rest.Sign() != 0; i++ {
		of := p.subs[current-i]
		if of == nil {
			of = new(big.Int)
			p.subs[current-i] = of
		}
		if of.Add(of, rest); of.Sign() >= 0 {
			return
		}
		rest.Set(of)
		of.SetInt64(0)
	}
}

// addToLog adds hits, or takes the newest ones back. Denied hits push out the oldest ones: no decision looks further
// back.
func (p *plain) addToLog(now, hits int64, allowed bool) {
	q := p.limit.Arithmetic.Quantum
	var live []int64
	for _, hit := range p.log {
		if hit > now/q-p.length()/q {
			live = append(live, hit)
		}
	}
	if hits < 0 {
		p.log = live[:int64(len(live))+hits]
		return
	}
	most := int64(p.limit.Requests)
	if !allowed {
		hits = min(hits, most)
	}
	for range hits {
		live = append(live, (now+q-1)/q)
	}
	p.log = live[max(0, int64(len(live))-most):]
}

func ceil(r *big.Rat) *big.Int {
	n, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	return n
}
