package backend

import (
	"bytes"
	"math/bits"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// moment is a time: us microseconds and the fraction num/den of another one, where den is the limit's StepDen. No step is
// ever rounded, so nothing drifts.
type moment struct{ us, num int64 }

func (m moment) before(n moment) bool { return m.us < n.us || m.us == n.us && m.num < n.num }

// plus adds the time of n hits; n may be negative.
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

// until is the time to the later moment n, rounded up to a whole microsecond.
func (m moment) until(n moment) time.Duration {
	late := n.us - m.us
	if n.num > m.num {
		late++
	}
	return micros(late)
}

// hits is the number of whole hits that fit between m and the later moment n.
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

// bucket is a token bucket that is refilled continuously, and also a leaky bucket: the arithmetic of both is the same.
//
// State: Start and Count are the moment at which the token bucket will be full, or the leaky bucket empty.
//
// This moment is not further ahead than the time that one whole bucket takes to drain, unless the capacity was lowered or the
// clock went back. If it is ahead by more than two drains, or by a second more than one drain, it is moved to one drain.
type bucket struct{}

func (bucket) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	a := &l.Arithmetic
	capacity := int64(l.Capacity())
	busy, kept, idle, horizon := busyUntil(l, s, now, c)

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
		if hits > 0 && l.Has(descriptor.SettingNoDelay) && l.NoDelay != descriptor.NoDelayAll {
			start := busy.plus(a, -min(int64(l.NoDelay), capacity))
			o.Delay = micros(max(0, start.ceil()-now))
		}
		if hits != 0 && c.adds(true) {
			s.Start, s.Count = next.us, next.num
			if next == idle {
				*s = State{}
			}
			kept = next
			o.Used = capacity - next.hits(a, horizon)
		}
	case hits > capacity:
		o.RetryAfter = Never
	default:
		if kept != busy {
			next = kept.plus(a, hits)
		}
		o.RetryAfter = horizon.until(next)
	}
	if o.Used > 0 {
		o.MoreAfter = horizon.until(kept.plus(a, capacity-o.Used+1))
	}
	o.ResetAfter = micros(kept.ceil() - now)
	return o
}

// busyUntil returns the moment of a state, and the bounds that it lies between: idle for an empty bucket, horizon for a full one.
// kept is the moment without the upper bound.
func busyUntil(l *descriptor.Limit, s *State, now int64, c commit) (busy, kept, idle, horizon moment) {
	a := &l.Arithmetic
	idle = moment{us: now}
	horizon = idle.plus(a, int64(l.Capacity()))
	busy = moment{s.Start, s.Count}
	if busy.num >= a.StepDen { // a fraction of another rate
		busy = moment{busy.us + 1, 0}
	}
	if busy.before(idle) {
		busy = idle
	}
	kept = busy
	if horizon.before(busy) {
		busy = horizon
		if kept.us-horizon.us > max(slack, horizon.us-now) {
			kept = horizon
			if c.changes() {
				s.Start, s.Count = kept.us, kept.num
			}
		}
	}
	return busy, kept, idle, horizon
}

// adjust changes what is used now: a bucket has no windows.
func (bucket) adjust(l *descriptor.Limit, s *State, now, _, delta int64) {
	capacity := int64(l.Capacity())
	busy, _, idle, horizon := busyUntil(l, s, now, commitNever)
	next := busy.plus(&l.Arithmetic, min(max(delta, -capacity), capacity))
	switch {
	case !idle.before(next):
		*s = State{}
		return
	case horizon.before(next):
		next = horizon
	}
	s.Start, s.Count = next.us, next.num
}

func (bucket) expires(_ *descriptor.Limit, s *State) int64 { return moment{s.Start, s.Count}.ceil() }

func (bucket) refusedMove() bool { return false }

func (bucket) entries(*descriptor.Limit) int { return 0 }

func (bucket) boundary(_ *descriptor.Limit, o *Outcome) time.Duration { return o.ResetAfter }

func (bucket) redis(*descriptor.Limit) *RedisForm { return &bucketForm }

var bucketForm = RedisForm{
	Shape: scripts.Bucket, Room: textRoom, least: 1,
	Parameters: func(l *descriptor.Limit, _ int64, _ int) (p1, p2, p3 int64) {
		return l.Arithmetic.Step, l.Arithmetic.StepNum, l.Arithmetic.StepDen
	},
	decode: func(seen []byte, _ *descriptor.Limit, _ int64, tail []uint32) (State, []uint32) {
		us, num, _ := bytes.Cut(seen, []byte{':'})
		return State{Start: number(us), Count: number(num)}, tail
	},
}
