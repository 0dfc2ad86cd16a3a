package redis

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// shapeOf says which part of the scripts keeps a limit's counter.
func shapeOf(l *descriptor.Limit) scripts.Shape {
	switch l.Algorithm {
	case descriptor.SlidingWindow:
		if l.Precision > 1 {
			return scripts.Precise
		}
		return scripts.Sliding
	case descriptor.SlidingLog:
		return scripts.Log
	case descriptor.TokenBucket:
		if l.Interval {
			return scripts.Interval
		}
		return scripts.Bucket
	case descriptor.LeakyBucket:
		return scripts.Bucket
	default:
		if l.FirstHit {
			return scripts.FirstHit
		}
		return scripts.Fixed
	}
}

// supported refuses limits that no store can count.
func supported(l *descriptor.Limit) error {
	switch {
	case l.Window.Length() <= 0:
		return fmt.Errorf("a window of %v cannot be counted in", l.Window.Length())
	case l.Algorithm != descriptor.FixedWindow && l.Arithmetic.Length == 0:
		return fmt.Errorf("a %v limit that was not compiled cannot be counted", l.Algorithm)
	}
	return nil
}

// parameters are p1 to p3 of the limit's part of the scripts.
func parameters(l *descriptor.Limit, shape scripts.Shape, m *terms) (p1, p2, p3 int64) {
	a := &l.Arithmetic
	switch shape {
	case scripts.Sliding:
		return a.Length, a.Quantum, 0
	case scripts.Precise:
		return a.Length, a.Quantum, int64(l.Precision)
	case scripts.Log:
		return a.Length, a.Quantum, int64(max(m.entries, int(l.Requests)))
	case scripts.Bucket:
		return a.Step, a.StepNum, a.StepDen
	case scripts.Interval:
		if l.FirstHit {
			return a.Length, int64(l.Requests), 1
		}
		return a.Length, int64(l.Requests), 0
	case scripts.Fixed:
		if l.Window.Location != nil {
			start, end := l.Window.Bounds(m.now)
			return end, start, windowNumber(l.Window, start)
		}
	case scripts.Lyft:
		start, end := l.Window.Bounds(m.now)
		return start, end, lyftLife(l.Window, end-m.now, m.jitter)
	}
	return l.Window.Length().Microseconds(), 0, 0
}

// lyftLife is for how long a key of envoyproxy/ratelimit's lives from its first hit, in milliseconds, when its window goes on for left
// microseconds: as long as a window, as there, because processes whose clocks are behind still count in it; and a random
// part of the jitter longer, so that not all keys of a window are gone at once.
func lyftLife(w descriptor.Window, left int64, jitter time.Duration) int64 {
	life := w.Length()
	if w.Location != nil {
		life = time.Duration(left)*time.Microsecond + time.Minute
	}
	if jitter > 0 {
		life += rand.N(jitter)
	}
	return life.Milliseconds()
}

// windowNumber numbers the windows of a calendar by the local date on which they begin.
func windowNumber(w descriptor.Window, start int64) int64 {
	y, m, d := time.UnixMicro(start).In(w.Location).Date()
	switch w.Unit {
	case descriptor.Year:
		return int64(y)
	case descriptor.Month:
		return int64(y)*12 + int64(m)
	}
	days := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86400
	if w.Unit == descriptor.Week {
		return (days + 3) / 7 // the epoch was a Thursday
	}
	return days
}

// seenRoom is the most that a script shows of a counter, in bytes.
func seenRoom(l *descriptor.Limit, shape scripts.Shape, entries int) int {
	switch shape {
	case scripts.Fixed, scripts.Lyft:
		return 8
	case scripts.Precise:
		return 8 + 4*(int(l.Precision)+1)
	case scripts.Log:
		return 8 + 4*entries
	default:
		return 40
	}
}

// decode reads what a script saw at now. The heads of the scripts' parts say how each state is kept; both sides must
// agree. tail has room for what has no fixed size, and is returned with what was appended.
func decode(seen []byte, l *descriptor.Limit, shape scripts.Shape, now int64, tail []uint32) (backend.State, []uint32) {
	if len(seen) == 0 || len(seen) < leastSeen(shape) {
		return backend.State{}, tail
	}
	switch shape {
	case scripts.Sliding:
		return slidingState(seen, l.Arithmetic.Length, now), tail
	case scripts.Bucket:
		us, num, _ := bytes.Cut(seen, []byte{':'})
		return backend.State{Start: number(us), Count: number(num)}, tail
	case scripts.FirstHit, scripts.Interval:
		start, count := pair(seen, now)
		return backend.State{Start: start, Count: count}, tail
	case scripts.Precise, scripts.Log:
		start, from := int64(binary.BigEndian.Uint64(seen)), len(tail)
		for i := 8; i+4 <= len(seen); i += 4 {
			tail = append(tail, binary.BigEndian.Uint32(seen[i:]))
		}
		s := backend.State{Start: start, Tail: tail[from:len(tail):len(tail)]}
		if shape == scripts.Precise {
			s = backend.State{Start: start * l.Arithmetic.Length, Count: int64(s.Tail[0]), Tail: s.Tail[1:]}
		}
		return s, tail
	case scripts.Lyft:
		count := int64(binary.LittleEndian.Uint64(seen))
		if count == 0 {
			return backend.State{}, tail
		}
		start, _ := l.Window.Bounds(now)
		return backend.State{Start: start, Count: count}, tail
	default:
		value := int64(binary.LittleEndian.Uint64(seen))
		if l.Window.Location != nil {
			return calendarState(value, now, l.Window), tail
		}
		return fixedState(value, now, l.Window.Length().Microseconds()), tail
	}
}

// leastSeen is how long a state is at least.
func leastSeen(shape scripts.Shape) int {
	switch shape {
	case scripts.Fixed, scripts.Lyft:
		return 8
	case scripts.Precise, scripts.Log:
		return 12
	default:
		return 1
	}
}

// A fixed window is one integer in Redis: the window's number modulo windowNumbers, times 2^countBits, plus its count.
const (
	countBits     = 40
	windowNumbers = 1 << 12
)

func fixedState(value, now, length int64) backend.State {
	count := value & backend.MaxCount
	if count == 0 {
		return backend.State{}
	}
	current := now / length
	ahead := (value>>countBits - current) & (windowNumbers - 1)
	return backend.State{Start: (current + ahead) * length, Count: count}
}

func calendarState(value, now int64, w descriptor.Window) backend.State {
	count := value & backend.MaxCount
	if count == 0 {
		return backend.State{}
	}
	start, end := w.Bounds(now)
	for range windowNumbers {
		if windowNumber(w, start)&(windowNumbers-1) == value>>countBits {
			return backend.State{Start: start, Count: count}
		}
		start, end = w.Bounds(end)
	}
	return backend.State{}
}

func slidingState(seen []byte, length, now int64) backend.State {
	if !isDigits(seen) {
		index, counts, _ := bytes.Cut(seen, []byte{':'})
		before, count, _ := bytes.Cut(counts, []byte{':'})
		return backend.State{Start: number(index) * length, Count: number(count), Prev: number(before)}
	}
	n := int(seen[0] - '0')
	before, count := len(seen)-2*n, len(seen)-n
	index := nearest(number(seen[1:before]), now/length, before-1)
	return backend.State{Start: index * length, Count: number(seen[count:]), Prev: number(seen[before:count])}
}

// digitsSize is the length of a state that Redis keeps as an integer, but whose digits are several numbers.
const digitsSize = 19

// isDigits tells such a state from one that is kept with colons.
func isDigits(seen []byte) bool {
	return len(seen) == digitsSize && bytes.IndexByte(seen, ':') < 0 && '1' <= seen[0] && seen[0] <= '7'
}

func pair(seen []byte, now int64) (at, count int64) {
	if !isDigits(seen) {
		t, c, _ := bytes.Cut(seen, []byte{':'})
		return number(t), number(c)
	}
	cut := digitsSize - int(seen[0]-'0')
	return nearest(number(seen[1:cut]), now, cut-1), number(seen[cut:])
}

// nearest is the number nearest to near that ends with these digits.
func nearest(n, near int64, digits int) int64 {
	if digits >= 16 { // all digits are there
		return n
	}
	space := int64(1)
	for range digits {
		space *= 10
	}
	d := (n - near + space/2) % space
	if d < 0 {
		d += space
	}
	return near + d - space/2
}

func number(b []byte) int64 {
	n, _ := strconv.ParseInt(string(b), 10, 64)
	return n
}
