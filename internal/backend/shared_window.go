package backend

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// sharedWindow is a fixed window, on the clock or on a calendar, whose limit is shared by classes of customers. Each
// class is guaranteed a part of the limit, and lends the unused rest of it.
//
// A class that is guaranteed G of the limit L asks for it evenly over the window. So the hits kept for it are those
// that it has not had yet, and at most those that are still due in the rest of the window:
//
//	kept = min(G - gone, G x rest of the window), and at least 0
//
// gone is the part of the guarantee that the class has used or missed: before hits are added, gone is raised to the
// part that was due until now. A hit of a class passes if the window has room for it in addition to the hits kept for
// all other classes. Example: limit 100, 20 guaranteed to class 1; in the middle of the window at most 10 are kept for
// it. Then three things hold, which docs/understand/algorithms.md proves: never more than the limit passes; a class
// that asks evenly gets its guarantee; and everyone can use hits that nobody asks for, more of them as the window
// passes.
//
// All numbers are integers. G, and G x rest of the window, are rounded down, so that the guarantees together are never
// more than the limit. Time passes in steps, of which a window has at most 8,192, so that products are exact in the
// script. In the last step nothing is kept.
//
// State: Start is the start of the window, Count the number of hits in it. Tail has ClassParts.Names, and then gone of
// each class. A Tail of other classes counts as zeros: nothing of the guarantees is gone yet.
type sharedWindow struct{}

const classSteps = 8192

// sharing is a shared window at one time, as one class sees it.
type sharing struct {
	limit *descriptor.Limit
	gone  []uint32 // gone of each class
	start int64    // start of the window
	step  int64    // length of a step, in microseconds
	steps int64    // steps left at the start of the window
	left  int64    // steps after the current one
}

func newSharing(l *descriptor.Limit, s *State, start, end, now int64) sharing {
	h := sharing{limit: l, start: start, step: (end - start + classSteps - 1) / classSteps}
	h.steps = (end - start - 1) / h.step
	h.left = h.steps - max(0, now-start)/h.step
	if s.Count > 0 && len(s.Tail) > 0 && s.Tail[0] == uint32(l.Classes.Names) {
		h.gone = s.Tail[1:]
	}
	return h
}

// classCount is how many classes have a guarantee.
func classCount(l *descriptor.Limit) int {
	n := 0
	for n < descriptor.MaxClasses && l.Classes.Percent[n] > 0 {
		n++
	}
	return n
}

// due is how much of its guarantee a class is still due when this many steps are left.
func (h *sharing) due(class int, left int64) int64 {
	return int64(h.limit.Classes.Percent[class]) * int64(h.limit.Requests) * left / (100 * h.steps)
}

// keptFor is how many hits are kept for a class when this many steps are left.
func (h *sharing) keptFor(class int, left int64) int64 {
	kept := h.due(class, left)
	if class < len(h.gone) {
		kept = min(kept, max(0, h.due(class, h.steps)-int64(h.gone[class])))
	}
	return kept
}

// kept is how many hits are kept for other classes when this many steps are left.
func (h *sharing) kept(left int64) (sum int64) {
	for i := range classCount(h.limit) {
		if i+1 != int(h.limit.Classes.Class) {
			sum += h.keptFor(i, left)
		}
	}
	return sum
}

// until is how long it takes from now until this many steps are left.
func (h *sharing) until(left, now int64) time.Duration {
	return micros(max(0, h.start+h.step*(h.steps-left)-now))
}

// fewer returns the most steps left at which at most this many hits are kept for other classes.
func (h *sharing) fewer(kept int64) int64 {
	low, high := int64(0), h.left // nothing is kept in the last step
	for low < high {
		middle := (low + high + 1) / 2
		if h.kept(middle) <= kept {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

func (sharedWindow) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	start, end := l.Window.Bounds(now)
	count := int64(0)
	if s.Count > 0 && s.Start >= start {
		count = s.Count
		switch {
		case s.Start > end:
			s.move(start, c)
		case s.Start == end: // the clock went back
			start, end = l.Window.Bounds(end)
		}
	}
	used := *s
	used.Count = count
	h := newSharing(l, &used, start, end, now)

	limit := int64(l.Requests)
	kept := h.kept(h.left)
	o := Outcome{Before: count, Used: count, Kept: kept, MoreAfter: micros(end - now), ResetAfter: micros(end - now)}
	refund := hits < 0
	hits = refundable(hits, count)
	after := min(count+hits, mostCounted(l))
	o.Allowed = after+kept <= limit || refund
	if !o.Allowed {
		o.RetryAfter = h.retryAfter(hits, count, end, now)
	}
	if c.adds(o.Allowed) {
		o.Used = after
		if hits != 0 {
			s.Start, s.Count = start, after
			s.Tail = h.charge(s.Tail, hits)
		}
	}
	switch most := min(o.Used, limit); {
	case kept > 0:
		o.MoreAfter = h.until(h.fewer(kept-1), now)
	case most > 0: // the next window starts with all guarantees kept again
		o.MoreAfter = h.inNext(most-1, end, now)
	}
	return o
}

// retryAfter is how long it takes until denied hits pass, if nothing is added.
func (h *sharing) retryAfter(hits, count, end, now int64) time.Duration {
	limit := int64(h.limit.Requests)
	switch {
	case hits > limit:
		return Never
	case count+hits <= limit:
		return h.until(h.fewer(limit-count-hits), now)
	}
	return h.inNext(limit-hits, end, now)
}

// inNext is how long it takes until at most this many hits are kept for other classes in the next window, if nobody
// uses it.
func (h *sharing) inNext(kept, end, now int64) time.Duration {
	start, next := h.limit.Window.Bounds(end)
	n := newSharing(h.limit, &State{}, start, next, end)
	return micros(end-now) + n.until(n.fewer(kept), end)
}

// charge returns the tail with hits of the class in it. It changes the tail, unless that is of other classes.
func (h *sharing) charge(tail []uint32, hits int64) []uint32 {
	if n := classCount(h.limit); h.gone == nil || len(h.gone) != n {
		tail = make([]uint32, 1+n)
		tail[0] = uint32(h.limit.Classes.Names)
		copy(tail[1:], h.gone)
	}
	if class := int(h.limit.Classes.Class) - 1; class >= 0 {
		gone := int64(tail[1+class])
		if hits > 0 {
			gone = max(gone, h.due(class, h.steps)-h.due(class, h.left))
		}
		tail[1+class] = uint32(min(max(0, gone+hits), math.MaxUint32))
	}
	return tail
}

func (sharedWindow) adjust(l *descriptor.Limit, s *State, now, mark, delta int64) {
	start, end := l.Window.Bounds(mark)
	used := *s
	if s.Start < start {
		used.Count = 0
	}
	if now >= end || now < start || used.Count > 0 && s.Start > start {
		return
	}
	h := newSharing(l, &used, start, end, now)
	count := min(max(0, used.Count+delta), mostCounted(l))
	if count == 0 {
		*s = State{}
		return
	}
	*s = State{Start: start, Count: count, Tail: h.charge(s.Tail, delta)}
}

func (sharedWindow) expires(l *descriptor.Limit, s *State) int64 {
	_, end := l.Window.Bounds(s.Start)
	return end
}

func (sharedWindow) rejectedMove() bool { return false }

func (sharedWindow) entries(l *descriptor.Limit) int { return 1 + classCount(l) }

// permits returns no permits, because a permit would belong to one class.
func (sharedWindow) permits(*descriptor.Limit, bool) Permits { return Permits{} }

func (sharedWindow) boundary(_ *descriptor.Limit, o *Outcome) time.Duration { return o.ResetAfter }

func (sharedWindow) redis(*descriptor.Limit) *RedisForm { return &sharedForm }

const sharedHead = 17 // bytes in front of gone

var sharedForm = RedisForm{
	Shape: scripts.Shared, least: sharedHead,
	Room: func(*descriptor.Limit, int) int { return sharedHead + 4*descriptor.MaxClasses },
	Parameters: func(l *descriptor.Limit, now int64, _ int) (p1, p2, p3 int64) {
		if l.Window.Location == nil {
			return l.Window.Length().Microseconds(), 0, packClasses(&l.Classes)
		}
		start, end := l.Window.Bounds(now)
		return end, start, packClasses(&l.Classes)
	},
	decode: func(seen []byte, _ *descriptor.Limit, _ int64, tail []uint32) (State, []uint32) {
		s := State{Start: int64(binary.LittleEndian.Uint64(seen)), Count: int64(binary.LittleEndian.Uint64(seen[8:]))}
		from := len(tail)
		tail = append(tail, uint32(seen[16]))
		_, tail = decodeTail(seen[sharedHead:], tail)
		s.Tail = slices.Clip(tail[from:])
		return s, tail
	},
}

// packClasses encodes the classes for a script, as one number of 46 bits: 3 bits for the class, 8 for the names, and 7
// for each percentage.
func packClasses(p *descriptor.ClassParts) int64 {
	n := int64(0)
	for i := descriptor.MaxClasses - 1; i >= 0; i-- {
		n = n<<7 | int64(p.Percent[i])
	}
	return n<<11 | int64(p.Names)<<3 | int64(p.Class)
}
