package backend

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// slidingWindow is the state of a sliding window, rolled on to a time. Time is counted in quanta.
//
// The window is cut into as many sub-windows as its precision says. What is used is the sum of the newest of them, the
// current one included, and of the one before those weighted by how much of it the window still overlaps, rounded down.
type slidingWindow struct {
	length int64 // of a sub-window
	index  int64 // of the current sub-window
	phase  int64 // how much of it has passed
	past   []uint32
	count  int64 // in the current sub-window
}

// applySlidingWindow admits hits while the estimate leaves room for them.
func applySlidingWindow(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	a := &l.Arithmetic
	var buf [8]uint32
	w := rollSlidingWindow(l, s, now, buf[:0])
	limit := int64(l.Requests)
	used := w.used(0, w.phase)
	o := Outcome{Before: used, Used: used, Allowed: hits < 0 || used+hits <= limit}
	if o.Allowed {
		if c.adds(true) && hits != 0 {
			w.add(hits)
			o.Used = w.used(0, w.phase)
			w.store(s, a.Quantum)
		}
	} else if hits > limit {
		o.RetryAfter = Never
	} else {
		o.RetryAfter = micros(w.wait(limit-hits)*a.Quantum - now%a.Quantum)
	}
	if o.Used > 0 || w.count > 0 {
		o.ResetAfter = micros(w.wait(0)*a.Quantum - now%a.Quantum)
	}
	return o
}

// rollSlidingWindow reads a state as it stands at now. When the clock went back, it stands at the beginning of the
// newer sub-window that it knows, and the times of an outcome count from there.
func rollSlidingWindow(l *descriptor.Limit, s *State, now int64, past []uint32) slidingWindow {
	a := &l.Arithmetic
	w := slidingWindow{length: a.Length / a.Quantum}
	at := now / a.Quantum
	w.index, w.phase = at/w.length, at%w.length
	n := int(max(l.Precision, 1))
	past = append(past, make([]uint32, n)...)
	w.past = past
	if s.Unused() {
		return w
	}
	index := s.Start / a.Length
	old := func(i int) uint32 { // the i-th sub-window before the stored one
		switch {
		case n == 1 && i == 1:
			return uint32(s.Prev)
		case i >= 1 && i <= len(s.Tail):
			return s.Tail[i-1]
		}
		return 0
	}
	if index >= w.index {
		if index > w.index {
			w.index, w.phase = index, 0
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
	past[shift-1] = uint32(s.Count)
	for i := int(shift); i < n; i++ {
		past[i] = old(i - int(shift) + 1)
	}
	return w
}

// used is the estimate once as many more sub-windows have begun as shift says, and phase of that one has passed.
func (w *slidingWindow) used(shift, phase int64) int64 {
	full, oldest := w.parts(shift)
	return full + w.weigh(oldest, phase)
}

// parts are the hits that count in full after shift more sub-windows, and those of the sub-window that leaves.
func (w *slidingWindow) parts(shift int64) (full, oldest int64) {
	n := int64(len(w.past))
	at := func(i int64) int64 { // the i-th sub-window before the one after shift
		switch {
		case i < shift:
			return 0
		case i == shift:
			return w.count
		case i-shift <= n:
			return int64(w.past[i-shift-1])
		}
		return 0
	}
	for i := int64(0); i < n; i++ {
		full += at(i)
	}
	return full, at(n)
}

// weigh is floor(count * (length-phase) / length). Scripts compute it in doubles: counts beyond what is exact there,
// which only a limit that was lowered a lot leaves behind, are taken as the largest exact one.
func (w *slidingWindow) weigh(count, phase int64) int64 {
	return min(count, maxExact/w.length) * (w.length - phase) / w.length
}

const maxExact = 1 << 52

// wait is how many quanta pass until no more than room is used, if nothing is added.
func (w *slidingWindow) wait(room int64) int64 {
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
			// oldest*(length-phase) < (k+1)*length
			phase = w.length - ceilDiv((k+1)*w.length, oldest) + 1
		}
		if shift == 0 && phase <= w.phase {
			phase = w.phase
		}
		return shift*w.length + phase - w.phase
	}
}

// add adds hits to the current sub-window, or takes them back, from the newest sub-windows that have any.
func (w *slidingWindow) add(hits int64) {
	if w.count+hits >= 0 {
		w.count += hits
		return
	}
	rest := -hits - w.count
	w.count = 0
	for i, n := range w.past {
		given := min(rest, int64(n))
		w.past[i] -= uint32(given)
		rest -= given
	}
}

func (w *slidingWindow) store(s *State, quantum int64) {
	if full, oldest := w.parts(0); full == 0 && oldest == 0 { // refunded
		*s = State{}
		return
	}
	s.Start, s.Count = w.index*w.length*quantum, w.count
	if len(w.past) == 1 {
		s.Prev, s.Tail = int64(w.past[0]), nil
		return
	}
	s.Prev, s.Tail = 0, append(s.Tail[:0], w.past...)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
