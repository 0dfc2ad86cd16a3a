package backend

import (
	"bytes"
	"math/bits"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// moment is a time: us microseconds and the fraction num/n of another one, where n is the limit's number of requests.
// No time is ever rounded, so nothing drifts.
type moment struct{ us, num int64 }

func (m moment) before(n moment) bool { return m.us < n.us || m.us == n.us && m.num < n.num }

// plus adds the time that a bucket needs for n hits; n may be negative.
func (m moment) plus(l *descriptor.Limit, n int64) moment {
	a := &l.Arithmetic
	m.us += n * a.Step
	if a.StepNum == 0 {
		return m
	}
	num := n * a.StepNum
	whole := num / a.StepDen
	if num -= whole * a.StepDen; num < 0 {
		num += a.StepDen
		whole--
	}
	m.us, m.num = m.us+whole, m.num+num*(int64(l.Requests)/a.StepDen)
	if m.num >= int64(l.Requests) {
		m.us, m.num = m.us+1, m.num-int64(l.Requests)
	}
	return m
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
func (m moment) hits(l *descriptor.Limit, n moment) int64 {
	us, num := n.us-m.us, n.num-m.num
	if num < 0 {
		us, num = us-1, num+int64(l.Requests)
	}
	hi, lo := timesRequests(us, num, int64(l.Requests))
	q, _ := bits.Div64(hi, lo, uint64(l.Arithmetic.Length))
	return int64(q)
}

// timesRequests is (us + num/requests) * requests, in 128 bits. Divided by the length of the window, these are hits.
func timesRequests(us, num, requests int64) (hi, lo uint64) {
	hi, lo = bits.Mul64(uint64(us), uint64(requests))
	lo, carry := bits.Add64(lo, uint64(num), 0)
	return hi + carry, lo
}

// bucket is a token bucket that is refilled continuously, and also a leaky bucket: the arithmetic of both is the same.
//
// State: Start and Count are the moment at which the token bucket will be full, or the leaky bucket empty, and Prev is
// the number of requests of the limit that this moment was computed for. Under another number, a hit lasts longer or
// shorter: the moment is computed again, so that as many hits are in use as before.
//
// This moment is not further ahead than the time that one whole bucket takes to drain, unless the capacity was lowered
// or the clock went back. If it is ahead by more than two drains, or by a second more than one drain, it is moved to
// one drain.
type bucket struct{}

func (bucket) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	capacity := int64(l.Capacity())
	busy, kept, idle, horizon := busyUntil(l, s, now, c)

	used := capacity - busy.hits(l, horizon)
	o := Outcome{Before: used, Used: used, Allowed: hits <= capacity}
	next := busy
	switch {
	case hits < 0:
		next = kept.shifted(l, hits, idle, horizon)
	case o.Allowed:
		next = busy.plus(l, hits)
		o.Allowed = !horizon.before(next)
	}
	switch {
	case o.Allowed:
		if hits > 0 && l.Has(descriptor.SettingNoDelay) && l.NoDelay != descriptor.NoDelayAll {
			start := busy.plus(l, -min(int64(l.NoDelay), capacity))
			o.Delay = micros(max(0, start.ceil()-now))
		}
		if hits != 0 && c.adds(true) {
			next.keep(l, s, idle)
			kept = next
			o.Used = capacity
			if next.before(horizon) {
				o.Used -= next.hits(l, horizon)
			}
		}
	case hits > capacity:
		o.RetryAfter = Never
	default:
		if kept != busy {
			next = kept.plus(l, hits)
		}
		o.RetryAfter = horizon.until(next)
	}
	if o.Used > 0 {
		o.MoreAfter = horizon.until(kept.plus(l, capacity-o.Used+1))
	}
	o.ResetAfter = micros(kept.ceil() - now)
	return o
}

// keep makes m the moment of a state, at the time idle.
func (m moment) keep(l *descriptor.Limit, s *State, idle moment) {
	if !idle.before(m) {
		*s = State{}
		return
	}
	s.Start, s.Count, s.Prev = m.us, m.num, int64(l.Requests)
}

// busyUntil returns the moment of a state, and the bounds that it lies between: idle for an empty bucket, horizon for a
// full one. kept is the moment without the upper bound. A recomputed state is kept, even if the take is denied.
// Otherwise it would drain at the rate of its old limit.
func busyUntil(l *descriptor.Limit, s *State, now int64, c commit) (busy, kept, idle, horizon moment) {
	idle = moment{us: now}
	horizon = idle.plus(l, int64(l.Capacity()))
	busy = moment{s.Start, s.Count}
	if busy.before(idle) {
		return idle, idle, idle, horizon
	}
	kept = busy
	changed := s.Prev != int64(l.Requests)
	if changed {
		kept = converted(l, s, idle, horizon)
	}
	if kept.us-horizon.us > max(slack, horizon.us-now) {
		kept, changed = horizon, true
	}
	if changed && c.changes() {
		kept.keep(l, s, idle)
	}
	if busy = kept; horizon.before(busy) {
		busy = horizon
	}
	return busy, kept, idle, horizon
}

// converted returns the moment of a state of another limit. The hits in use are the same, as a fraction without
// rounding. If they are more than two buckets of this limit, or nonsense, the bucket was just used up.
func converted(l *descriptor.Limit, s *State, idle, horizon moment) moment {
	us, requests := s.Start-idle.us, l.Requests
	hi, lo := timesRequests(us, s.Count, s.Prev)
	if length := uint64(l.Arithmetic.Length); us < maxExact && hi < length {
		if hits, _ := bits.Div64(hi, lo, length); hits <= 2*l.Capacity() {
			us, num := bits.Div64(hi, lo, requests)
			return moment{idle.us + int64(us), int64(num)}
		}
	}
	return horizon
}

// adjust changes the current number of used hits: a bucket has no windows.
func (bucket) adjust(l *descriptor.Limit, s *State, now, _, delta int64) {
	_, kept, idle, horizon := busyUntil(l, s, now, commitNever)
	kept.shifted(l, delta, idle, horizon).keep(l, s, idle)
}

// shifted is m after hits more, whether or not they fit: at most a full bucket, unless more is in use already. Negative
// hits are given back: at most all.
func (m moment) shifted(l *descriptor.Limit, hits int64, idle, horizon moment) moment {
	capacity := int64(l.Capacity())
	if hits <= -2*capacity {
		return idle
	}
	next := m.plus(l, min(hits, capacity))
	switch {
	case next.before(idle):
		return idle
	case hits > 0 && horizon.before(next):
		if m.before(horizon) {
			return horizon
		}
		return m
	}
	return next
}

func (bucket) expires(_ *descriptor.Limit, s *State) int64 { return moment{s.Start, s.Count}.ceil() }

func (bucket) rejectedMove() bool { return false }

func (bucket) entries(*descriptor.Limit) int { return 0 }

func (bucket) boundary(_ *descriptor.Limit, o *Outcome) time.Duration { return o.ResetAfter }

func (bucket) redis(*descriptor.Limit) *RedisForm { return &bucketForm }

var bucketForm = RedisForm{
	Shape: scripts.Bucket, Room: func(*descriptor.Limit, int) int { return 50 }, least: 1,
	Parameters: func(l *descriptor.Limit, _ int64, _ int) (p1, p2, p3 int64) {
		return l.Arithmetic.Length, int64(l.Requests), l.Arithmetic.StepDen
	},
	decode: func(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32) {
		num := int64(0)
		if i := bytes.LastIndexByte(seen, ':'); i != bytes.IndexByte(seen, ':') {
			seen, num = seen[:i], number(seen[i+1:])
		}
		s, tail := decodePair(seen, l, now, tail)
		return State{Start: s.Start, Count: num, Prev: s.Count}, tail
	},
}
