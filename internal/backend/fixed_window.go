package backend

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// fixedWindow counts hits in the window that contains now. A window lies on the clock or on a calendar, or starts with
// its first hit.
//
// State: Start is the start of the window, Count the number of hits in it.
type fixedWindow struct{}

// If the clock goes back to the window before, the newer window stays in use. If it goes back further, the hits count
// in the window that contains now.
func (fixedWindow) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	start, end := fixedBounds(l, now)
	count := int64(0)
	if s.Count > 0 {
		if l.FirstHit {
			length := end - start
			switch {
			case s.Start > now+slack:
				count = s.Count
				s.move(start, c)
			case now < s.Start+length:
				start, end, count = s.Start, s.Start+length, s.Count
			}
		} else if s.Start >= start {
			count = s.Count
			switch {
			case s.Start > end:
				s.move(start, c)
			case s.Start > start:
				start, end = fixedBounds(l, s.Start)
			}
		}
	}

	limit := int64(l.Requests)
	o := Outcome{Before: count, Used: count, MoreAfter: micros(end - now), ResetAfter: micros(end - now)}
	refund := hits < 0
	hits = refundable(hits, count)
	after := min(count+hits, mostCounted(l))
	o.Allowed = after <= limit || refund
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

func (fixedWindow) adjust(l *descriptor.Limit, s *State, now, mark, delta int64) {
	start, end := fixedBounds(l, mark)
	count := int64(0)
	switch {
	case s.Count == 0:
	case l.FirstHit && mark < s.Start+(end-start):
		start, end, count = s.Start, s.Start+(end-start), s.Count
		if mark < start {
			return // its window is over, and this one started later
		}
	case !l.FirstHit && s.Start > start:
		return
	case !l.FirstHit && s.Start == start:
		count = s.Count
	}
	if now >= end {
		return
	}
	if count = min(max(0, count+delta), mostCounted(l)); count == 0 {
		*s = State{}
		return
	}
	s.Start, s.Count = start, count
}

// mostCounted returns the largest count of a window under a limit: MaxCount, or the largest count in the form that
// every version of this program reads. Denied hits may count, so a window may hold many more hits than its limit.
func mostCounted(l *descriptor.Limit) int64 {
	if l.Requests <= math.MaxUint32 {
		return 1<<countBits - 1
	}
	return MaxCount
}

// fixedBounds returns the bounds of the window that contains now. Where windows start with a hit, this window starts at
// now.
func fixedBounds(l *descriptor.Limit, now int64) (start, end int64) {
	length := l.Arithmetic.Length
	switch {
	case l.FirstHit:
		return now, now + l.Window.Length().Microseconds()
	case length <= 0 || now < 0 || l.Window.Location != nil:
		return l.Window.Bounds(now)
	}
	start = now - now%length
	return start, start + length
}

func (fixedWindow) expires(l *descriptor.Limit, s *State) int64 {
	_, end := fixedBounds(l, s.Start)
	return end
}

func (fixedWindow) rejectedMove() bool { return false }

func (fixedWindow) entries(*descriptor.Limit) int { return 0 }

func (fixedWindow) permits(*descriptor.Limit, bool) Permits {
	return Permits{Kind: PermitsOfWindow, Renewed: true}
}

func (fixedWindow) boundary(_ *descriptor.Limit, o *Outcome) time.Duration { return o.ResetAfter }

func (fixedWindow) redis(l *descriptor.Limit) *RedisForm {
	switch {
	case l.FirstHit:
		return &firstHitForm
	case l.Window.Location != nil:
		return &calendarForm
	default:
		return &clockForm
	}
}

// A window on the clock or a calendar is one integer in Redis: its number modulo windowNumbers, times 2^countBits, plus
// its count. If the count has more bits, the script shows it as a second integer, after the number.
const (
	countBits     = 40
	windowNumbers = 1 << 12
	fixedRoom     = 16
)

// decodeNumbered reads the number of a window, modulo windowNumbers, and its count.
func decodeNumbered(seen []byte) (number, count int64) {
	value := int64(binary.LittleEndian.Uint64(seen))
	if len(seen) >= fixedRoom {
		return value, int64(binary.LittleEndian.Uint64(seen[8:]))
	}
	return value >> countBits, value & (1<<countBits - 1)
}

func roomOfFixed(*descriptor.Limit, int) int { return fixedRoom }

var clockForm = RedisForm{
	Shape: scripts.Fixed, Parameters: windowParameters, Room: roomOfFixed, least: 8,
	decode: func(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32) {
		number, count := decodeNumbered(seen)
		if count == 0 {
			return State{}, tail
		}
		length := l.Window.Length().Microseconds()
		current := now / length
		ahead := (number - current) & (windowNumbers - 1)
		return State{Start: (current + ahead) * length, Count: count}, tail
	},
}

var calendarForm = RedisForm{
	Shape: scripts.Fixed, Room: roomOfFixed, least: 8,
	Parameters: func(l *descriptor.Limit, now int64, _ int) (p1, p2, p3 int64) {
		start, end := l.Window.Bounds(now)
		return end, start, l.Window.Number(start)
	},
	decode: func(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32) {
		number, count := decodeNumbered(seen)
		if count == 0 {
			return State{}, tail
		}
		start, end := l.Window.Bounds(now)
		for range 2 { // all windows after the next one mean the same
			if l.Window.Number(start)&(windowNumbers-1) == number {
				break
			}
			start, end = l.Window.Bounds(end)
		}
		return State{Start: start, Count: count}, tail
	},
}

var firstHitForm = RedisForm{
	Shape: scripts.FirstHit, Parameters: windowParameters, Room: textRoom, least: 1,
	decode: decodePair,
}

// LyftForm keeps each fixed window in its own key, as envoyproxy/ratelimit does. p3 is the lifetime of the key from its
// first hit, in milliseconds. It is as long as a window, as in envoyproxy/ratelimit: replicas whose clocks are behind
// still count in this key.
var LyftForm = RedisForm{
	Shape: scripts.Lyft, Room: numberRoom, least: 8,
	Parameters: func(l *descriptor.Limit, now int64, _ int) (p1, p2, p3 int64) {
		start, end := l.Window.Bounds(now)
		life := l.Window.Length()
		if l.Window.Location != nil {
			life = micros(end-now) + time.Minute
		}
		return start, end, life.Milliseconds()
	},
	decode: func(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32) {
		count := int64(binary.LittleEndian.Uint64(seen))
		if count == 0 {
			return State{}, tail
		}
		start, _ := l.Window.Bounds(now)
		return State{Start: start, Count: count}, tail
	},
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
