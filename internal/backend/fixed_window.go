package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// applyFixedWindow counts hits in the window that holds now: on the clock, on a calendar, or begun by its first hit.
//
// When the clock went back, the newer window stays: a step back never opens a window twice.
func applyFixedWindow(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	start, end := fixedBounds(l, now)
	count := int64(0)
	if s.Count > 0 {
		if l.FirstHit {
			if length := end - start; now < s.Start+length {
				start, end, count = s.Start, s.Start+length, s.Count
			}
		} else if s.Start >= start {
			count = s.Count
			if s.Start > start {
				start, end = fixedBounds(l, s.Start)
			}
		}
	}

	limit := int64(l.Requests)
	o := Outcome{Before: count, Used: count, ResetAfter: micros(end - now)}
	after := min(max(count+hits, 0), MaxCount)
	o.Allowed = after <= limit || hits < 0
	if !o.Allowed {
		o.RetryAfter = o.ResetAfter
		if hits > limit {
			o.RetryAfter = Never
		}
	}
	if c.adds(o.Allowed) {
		o.Used = after
		if hits != 0 {
			s.Start, s.Count = start, after
		}
	}
	return o
}

// fixedBounds is the window that begins at now if it has to begin with a hit, else the one that holds now.
func fixedBounds(l *descriptor.Limit, now int64) (start, end int64) {
	if l.FirstHit {
		return now, now + l.Window.Length().Microseconds()
	}
	return l.Window.Bounds(now)
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
