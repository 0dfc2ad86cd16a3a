package backend

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// slidingWindow estimates the hits in the window that ends now, and allows hits while the estimate leaves room for
// them.
//
// The window is cut into as many sub-windows as its precision. The estimate is the sum of two parts: all hits of that
// many newest sub-windows, the current one included; and the hits of the sub-window before them, weighted by the part
// of it that is less than a window ago, rounded down. A hit that is exactly one window old is outside, as in a sliding
// log: so at the start of a sub-window, one quantum of time of the oldest one has left already, and even traffic of
// exactly the limit passes.
//
// State: Start is the start of the current sub-window, Count the number of hits in it. Earlier sub-windows are in Prev
// if the precision is 1, otherwise in Tail, newest first.
type slidingWindow struct{}

func (slidingWindow) expires(l *descriptor.Limit, s *State) int64 {
	return s.Start + l.Arithmetic.Length*(int64(max(l.Precision, 1))+1)
}

func (slidingWindow) rejectedMove() bool { return false }

func (slidingWindow) entries(l *descriptor.Limit) int { return int(l.Precision) }

func (slidingWindow) permits(l *descriptor.Limit, _ bool) Permits {
	return Permits{Kind: PermitsOfWindow, Within: micros(l.Arithmetic.Length)}
}

func (slidingWindow) boundary(_ *descriptor.Limit, o *Outcome) time.Duration { return o.PartEnds }

func (slidingWindow) redis(l *descriptor.Limit) *RedisForm {
	if l.Precision > 1 {
		return &preciseForm
	}
	return &slidingForm
}

var slidingForm = RedisForm{
	Shape: scripts.Sliding, Room: func(*descriptor.Limit, int) int { return 50 }, least: 1,
	Parameters: func(l *descriptor.Limit, _ int64, _ int) (p1, p2, p3 int64) {
		return l.Arithmetic.Length, l.Arithmetic.Quantum, 0
	},
	decode: func(seen []byte, l *descriptor.Limit, now int64, tail []uint32) (State, []uint32) {
		length := l.Arithmetic.Length
		if !isDigits(seen) {
			index, counts, _ := bytes.Cut(seen, []byte{':'})
			before, count, _ := bytes.Cut(counts, []byte{':'})
			return State{Start: number(index) * length, Count: number(count), Prev: number(before)}, tail
		}
		n := int(seen[0] - '0')
		before, count := len(seen)-2*n, len(seen)-n
		index := nearest(number(seen[1:before]), now/length, before-1)
		return State{Start: index * length, Count: number(seen[count:]), Prev: number(seen[before:count])}, tail
	},
}

var preciseForm = RedisForm{
	Shape: scripts.Precise, least: 12,
	Room: func(l *descriptor.Limit, _ int) int { return 8 + 4*(int(l.Precision)+1) },
	Parameters: func(l *descriptor.Limit, _ int64, _ int) (p1, p2, p3 int64) {
		return l.Arithmetic.Length, l.Arithmetic.Quantum, int64(l.Precision)
	},
	decode: func(seen []byte, l *descriptor.Limit, _ int64, tail []uint32) (State, []uint32) {
		counts, tail := decodeTail(seen[8:], tail)
		index := int64(binary.BigEndian.Uint64(seen))
		return State{Start: index * l.Arithmetic.Length, Count: int64(counts[0]), Tail: counts[1:]}, tail
	},
}

// rolledWindow is the state of a sliding window, moved forward to a later time. Times are in quanta.
type rolledWindow struct {
	length int64 // length of a sub-window
	index  int64 // index of the current sub-window
	phase  int64 // part of it that has passed; negative if it has not started, because the clock went back
	past   []int64
	count  int64 // hits in the current sub-window
}

func (slidingWindow) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	a := &l.Arithmetic
	var buf [8]int64
	w := roll(l, s, now, buf[:0])
	if start := w.index * a.Length; s.Start > start {
		s.move(start, c)
	}
	limit := int64(l.Requests)
	used := w.used(0, w.phase)
	o := Outcome{Before: used, Used: used, Allowed: hits < 0 || used+hits <= limit}
	hits = refundable(hits, used)
	if o.Allowed {
		if c.adds(true) && hits != 0 {
			w.addHits(hits)
			o.Used = w.used(0, w.phase)
			w.store(s, a.Quantum)
		}
	} else if hits > limit {
		o.RetryAfter = Never
	} else {
		o.RetryAfter = micros(w.wait(limit-hits)*a.Quantum - now%a.Quantum)
	}
	if o.Used > 0 {
		o.MoreAfter = micros(w.wait(max(0, min(o.Used, limit)-1))*a.Quantum - now%a.Quantum)
	}
	if o.Used > 0 || w.count > 0 {
		o.ResetAfter = micros(w.wait(0)*a.Quantum - now%a.Quantum)
	}
	o.PartEnds = micros((w.length-w.phase)*a.Quantum - now%a.Quantum)
	return o
}

func (slidingWindow) adjust(l *descriptor.Limit, s *State, now, mark, delta int64) {
	a := &l.Arithmetic
	var buf [8]int64
	w := roll(l, s, now, buf[:0])
	switch shift := w.index - mark/a.Length; {
	case shift <= 0:
		w.count = min(max(0, w.count+delta), mostInSubWindow(l))
	case shift <= int64(len(w.past)):
		w.past[shift-1] = min(max(0, w.past[shift-1]+delta), mostInSubWindow(l))
	default:
		return
	}
	w.store(s, a.Quantum)
}

// mostInSubWindow returns the largest count of a sub-window. Only late charges of reservations can exceed the limit.
func mostInSubWindow(l *descriptor.Limit) int64 {
	if l.Requests <= math.MaxUint32 {
		return math.MaxUint32
	}
	return maxExact
}

// roll reads a state as of now. If the clock went back by up to a window, the newest sub-window in the state stays in
// use, and phase is negative until it starts. If the clock went back further, its hits become hits of the sub-window
// that contains now.
func roll(l *descriptor.Limit, s *State, now int64, past []int64) rolledWindow {
	a := &l.Arithmetic
	w := rolledWindow{length: a.Length / a.Quantum}
	at := now / a.Quantum
	w.index, w.phase = at/w.length, at%w.length
	n := int(max(l.Precision, 1))
	past = append(past, make([]int64, n)...)
	w.past = past
	if s.Unused() {
		return w
	}
	index := s.Start / a.Length
	old := func(i int) int64 { // the i-th sub-window before the stored one
		switch {
		case n == 1 && i == 1:
			return s.Prev
		case i >= 1 && i <= len(s.Tail):
			return int64(s.Tail[i-1])
		}
		return 0
	}
	if index >= w.index {
		if index <= w.index+int64(n) {
			w.phase -= (index - w.index) * w.length
			w.index = index
		}
		w.count = s.Count
		for i := range past {
			past[i] = old(i + 1)
		}
		return w
	}
	shift := w.index - index
	if shift > int64(n) {
		return w
	}
	past[shift-1] = s.Count
	for i := int(shift); i < n; i++ {
		past[i] = old(i - int(shift) + 1)
	}
	return w
}

// used returns the estimate after shift more sub-windows have started, when phase of the newest one has passed.
func (w *rolledWindow) used(shift, phase int64) int64 {
	full, oldest := w.parts(shift)
	return full + w.weigh(oldest, phase)
}

// parts returns the hits that count in full after shift more sub-windows, and the hits of the sub-window that is
// leaving.
func (w *rolledWindow) parts(shift int64) (full, oldest int64) {
	n := int64(len(w.past))
	at := func(i int64) int64 { // the i-th sub-window before the one that is current after shift
		switch {
		case i < shift:
			return 0
		case i == shift:
			return w.count
		case i-shift <= n:
			return w.past[i-shift-1]
		}
		return 0
	}
	for i := int64(0); i < n; i++ {
		full += at(i)
	}
	return full, at(n)
}

// weigh is floor(count * (length-1-phase) / length): of the length quanta of the oldest sub-window, those that start
// less than a window ago. Before the newest sub-window has started, these are all of them. Scripts compute it in
// doubles. A count that is too large to be exact there is taken as the largest exact one; only a limit that was lowered
// a lot leaves such a count behind.
func (w *rolledWindow) weigh(count, phase int64) int64 {
	return min(count, maxExact/w.length) * (w.length - 1 - max(phase, -1)) / w.length
}

const maxExact = 1 << 52

// wait is the number of quanta until at most room is used, if nothing is added.
func (w *rolledWindow) wait(room int64) int64 {
	if w.used(0, w.phase) <= room {
		return 0
	}
	for shift := int64(0); ; shift++ {
		full, oldest := w.parts(shift)
		oldest = min(oldest, maxExact/w.length)
		k := room - full
		if k < 0 {
			continue
		}
		phase := int64(0)
		if oldest > k {
			// oldest*(length-1-phase) < (k+1)*length
			phase = w.length - ceilDiv((k+1)*w.length, oldest)
		}
		if shift == 0 && phase <= w.phase {
			phase = w.phase
		}
		return shift*w.length + phase - w.phase
	}
}

// addHits adds hits to the current sub-window. If hits is negative, it takes them back from the newest sub-windows that
// have any.
func (w *rolledWindow) addHits(hits int64) {
	if w.count+hits >= 0 {
		w.count += hits
		return
	}
	rest := -hits - w.count
	w.count = 0
	for i, n := range w.past {
		given := min(rest, n)
		w.past[i] -= given
		rest -= given
	}
}

func (w *rolledWindow) store(s *State, quantum int64) {
	if full, oldest := w.parts(0); full == 0 && oldest == 0 { // refunded
		*s = State{}
		return
	}
	s.Start, s.Count = w.index*w.length*quantum, w.count
	if len(w.past) == 1 {
		s.Prev, s.Tail = w.past[0], nil
		return
	}
	s.Prev, s.Tail = 0, s.Tail[:0]
	for _, n := range w.past {
		s.Tail = append(s.Tail, uint32(n))
	}
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
