package backend

import (
	"math/bits"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// moment is a time in microseconds with a fraction of num/den, den being the limit's StepDen: no step is ever rounded,
// so nothing drifts.
type moment struct{ us, num int64 }

func (m moment) before(n moment) bool { return m.us < n.us || m.us == n.us && m.num < n.num }

// plus adds n hits' worth of time; n may be negative.
func (m moment) plus(a *descriptor.Arithmetic, n int64) moment {
	num := m.num + n*a.StepNum
	carry := num / a.StepDen
	if num -= carry * a.StepDen; num < 0 {
		num += a.StepDen
		carry--
	}
	return moment{m.us + n*a.Step + carry, num}
}

// ceil is the first whole microsecond not before m.
func (m moment) ceil() int64 {
	if m.num > 0 {
		return m.us + 1
	}
	return m.us
}

// hits is how many whole hits fit between m and the later n.
func (m moment) hits(a *descriptor.Arithmetic, n moment) int64 {
	us, num := n.us-m.us, n.num-m.num
	if num < 0 {
		us, num = us-1, num+a.StepDen
	}
	hi, lo := bits.Mul64(uint64(us), uint64(a.StepDen))
	lo, carry := bits.Add64(lo, uint64(num), 0)
	q, _ := bits.Div64(hi+carry, lo, uint64(a.Step*a.StepDen+a.StepNum))
	return int64(q)
}

// applyBucket holds a token bucket that is refilled continuously, and a leaky bucket: they are one thing seen from two
// sides. State: Start and Count are the moment at which the bucket will be full (of tokens) or empty (of water).
//
// The moment never lies further ahead than a whole bucket: neither a lowered limit nor a clock that went back refuses
// for longer than it takes to drain once.
func applyBucket(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	a := &l.Arithmetic
	capacity := int64(l.Capacity())
	idle := moment{us: now}
	horizon := idle.plus(a, capacity)
	busy := moment{s.Start, s.Count}
	if busy.num >= a.StepDen { // another rate's fraction
		busy = moment{busy.us + 1, 0}
	}
	if busy.before(idle) {
		busy = idle
	}
	if horizon.before(busy) {
		busy = horizon
	}

	used := capacity - busy.hits(a, horizon)
	o := Outcome{Before: used, Used: used, Allowed: hits <= capacity}
	next := busy
	if o.Allowed {
		next = busy.plus(a, max(hits, -capacity))
		o.Allowed = !horizon.before(next)
		if next.before(idle) {
			next = idle
		}
	}
	switch {
	case o.Allowed:
		if l.Algorithm == descriptor.LeakyBucket && l.NoDelay != descriptor.NoDelayAll && hits > 0 {
			start := busy.plus(a, -min(int64(l.NoDelay), capacity))
			o.Delay = micros(max(0, start.ceil()-now))
		}
		if hits != 0 && c.adds(true) {
			s.Start, s.Count = next.us, next.num
			if next == idle {
				*s = State{}
			}
			busy = next
			o.Used = capacity - busy.hits(a, horizon)
		}
	case hits > capacity:
		o.RetryAfter = Never
	default:
		late := next.us - horizon.us
		if next.num > horizon.num {
			late++
		}
		o.RetryAfter = micros(late)
	}
	o.ResetAfter = micros(busy.ceil() - now)
	return o
}

// applyInterval holds a token bucket that gets all tokens of a window at once when the window begins. State: Start is
// the window in which it was last looked at, Count the tokens that were missing then.
func applyInterval(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	length, refill := l.Arithmetic.Length, int64(l.Requests)
	capacity := int64(l.Burst)
	mark, used := now, int64(0)
	if !l.FirstHit {
		mark = now - now%length
	}
	if s.Count > 0 {
		ticks := max(0, now-s.Start) / length
		if ticks < ceilDiv(s.Count, refill) {
			used = s.Count - ticks*refill
		}
		if used > 0 || !l.FirstHit {
			mark = max(s.Start, s.Start+ticks*length)
		}
	}
	used = min(used, capacity) // the burst was lowered

	o := Outcome{Before: used, Used: used, Allowed: hits < 0 || used+hits <= capacity}
	switch {
	case o.Allowed:
		if hits != 0 && c.adds(true) {
			o.Used = max(0, used+hits)
			s.Start, s.Count = mark, o.Used
		}
	case hits > capacity:
		o.RetryAfter = Never
	default:
		o.RetryAfter = micros(mark + ceilDiv(used+hits-capacity, refill)*length - now)
	}
	if o.Used > 0 {
		o.ResetAfter = micros(mark + ceilDiv(o.Used, refill)*length - now)
	}
	return o
}
