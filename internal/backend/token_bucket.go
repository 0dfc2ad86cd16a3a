package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// tokenBucket is a bucket from which requests take tokens. It is refilled continuously (bucket), or at intervals
// (intervalBucket).
type tokenBucket struct{ bucket }

func (b tokenBucket) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	if l.Interval {
		return intervalBucket{}.apply(l, s, now, hits, c)
	}
	return b.bucket.apply(l, s, now, hits, c)
}

func (b tokenBucket) adjust(l *descriptor.Limit, s *State, now, mark, delta int64) {
	if l.Interval {
		intervalBucket{}.adjust(l, s, now, mark, delta)
		return
	}
	b.bucket.adjust(l, s, now, mark, delta)
}

func (b tokenBucket) expires(l *descriptor.Limit, s *State) int64 {
	if l.Interval {
		return s.Start + ceilDiv(s.Count, int64(l.Requests))*l.Arithmetic.Length
	}
	return b.bucket.expires(l, s)
}

func (tokenBucket) permits(l *descriptor.Limit, _ bool) Permits {
	if l.Interval {
		return Permits{Kind: PermitsOfWindow}
	}
	return Permits{Kind: PermitsOfBucket}
}

// boundary applies to refills at intervals only. It is the time until the next refill. ResetAfter ends at the last
// refill that the bucket needs to be full.
func (tokenBucket) boundary(l *descriptor.Limit, o *Outcome) time.Duration {
	refills := ceilDiv(o.Used, int64(l.Requests))
	return o.ResetAfter - time.Duration(max(refills-1, 0))*micros(l.Arithmetic.Length)
}

func (b tokenBucket) redis(l *descriptor.Limit) *RedisForm {
	if l.Interval {
		return &intervalForm
	}
	return b.bucket.redis(l)
}

var intervalForm = RedisForm{
	Shape: scripts.Interval, Room: textRoom, least: 1,
	Parameters: func(l *descriptor.Limit, _ int64, _ int) (p1, p2, p3 int64) {
		if l.FirstHit {
			p3 = 1
		}
		return l.Arithmetic.Length, int64(l.Requests), p3
	},
	decode: decodePair,
}

// intervalBucket is a token bucket that gets all tokens of a window together, when the window starts.
//
// State: Start is the start of the window in which the state was last changed, Count the number of tokens that were
// missing then.
type intervalBucket struct{}

func (intervalBucket) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	length, refill := l.Arithmetic.Length, int64(l.Requests)
	capacity := int64(l.Burst)
	windowStart, used := missing(l, s, now, c)

	o := Outcome{Before: used, Used: used, Allowed: hits < 0 || used+hits <= capacity}
	switch {
	case o.Allowed:
		if hits != 0 && c.adds(true) {
			o.Used = max(0, used+hits)
			s.Start, s.Count = windowStart, o.Used
		}
	case hits > capacity:
		o.RetryAfter = Never
	default:
		o.RetryAfter = micros(windowStart + ceilDiv(used+hits-capacity, refill)*length - now)
	}
	if o.Used > 0 {
		o.MoreAfter = micros(windowStart + length - now)
		o.ResetAfter = micros(windowStart + ceilDiv(o.Used, refill)*length - now)
	}
	return o
}

// missing returns how many tokens are missing from a bucket, and the window that this number is of.
func missing(l *descriptor.Limit, s *State, now int64, c commit) (windowStart, used int64) {
	length, refill := l.Arithmetic.Length, int64(l.Requests)
	windowStart = now
	if !l.FirstHit {
		windowStart = now - now%length
	}
	if s.Count > 0 {
		start := s.Start
		if ahead := start - windowStart; l.FirstHit && ahead > slack || !l.FirstHit && ahead > length {
			start = windowStart
			s.move(start, c)
		}
		ticks := max(0, now-start) / length
		if ticks < ceilDiv(s.Count, refill) {
			used = s.Count - ticks*refill
		}
		if used > 0 || !l.FirstHit {
			windowStart = start + ticks*length
		}
	}
	return windowStart, min(used, int64(l.Burst)) // the limit's burst may have been lowered
}

// adjust changes the number of tokens that are missing now: a bucket's missing tokens stay missing over its windows.
func (intervalBucket) adjust(l *descriptor.Limit, s *State, now, _, delta int64) {
	windowStart, used := missing(l, s, now, commitNever)
	if used = min(max(0, used+delta), int64(l.Burst)); used == 0 {
		*s = State{}
		return
	}
	s.Start, s.Count = windowStart, used
}
