package backend

import (
	"encoding/binary"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// slidingLog allows hits while the window that ends now holds fewer than the limit. An entry that is exactly one window
// old is outside.
//
// State: Start is the base time in quanta, Tail the entries as offsets from it, oldest first. The time of a hit is
// rounded up to the next full quantum, and to the time of the last entry if that is later. So a hit never leaves too
// early. Entries that lie too far in the future become entries of now.
type slidingLog struct{}

func (slidingLog) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	a := &l.Arithmetic
	length := a.Length / a.Quantum
	if n := len(s.Tail); n > 0 {
		if at := ceilDiv(now, a.Quantum); s.Start+int64(s.Tail[n-1]) > at+ceilDiv(slack, a.Quantum) {
			if !c.changes() {
				s = &State{Start: s.Start, Tail: slices.Clone(s.Tail)}
			}
			s.notAfter(at)
		}
	}
	cut := now/a.Quantum - length - s.Start // entries with offsets up to cut have left the window
	first := sort.Search(len(s.Tail), func(i int) bool { return int64(s.Tail[i]) > cut })
	live := s.Tail[first:]
	until := func(i int) int64 { return (s.Start+int64(live[i])+length)*a.Quantum - now }

	limit, used := int64(l.Requests), int64(len(live))
	o := Outcome{Before: used, Used: used, Allowed: hits < 0 || used+hits <= limit}
	hits = refundable(hits, used)
	if !o.Allowed {
		if hits > limit {
			o.RetryAfter = Never
		} else {
			o.RetryAfter = micros(until(int(used + hits - limit - 1)))
		}
	}
	if hits != 0 && c.adds(o.Allowed) {
		if hits < 0 {
			s.Tail = live[:used+hits]
		} else {
			keep := hits
			if !o.Allowed { // only the newest ones matter: no decision looks further back
				keep = min(hits, limit)
				first += int(max(0, used+keep-limit))
			}
			at := ceilDiv(now, a.Quantum)
			if used > 0 { // the log stays in order when the clock goes back
				at = max(at, s.Start+int64(live[used-1]))
			}
			s.append(first, at, int(keep))
		}
		live = s.Tail
		o.Used = int64(len(live))
	}
	if len(live) > 0 {
		o.MoreAfter = micros(until(min(max(0, len(live)-int(limit)), len(live)-1)))
		o.ResetAfter = micros(until(len(live) - 1))
	}
	return o
}

// adjust removes the entries of the time mark, or adds entries to them. If there is no room, new entries replace the
// oldest ones: no decision looks further back.
func (slidingLog) adjust(l *descriptor.Limit, s *State, now, mark, delta int64) {
	a := &l.Arithmetic
	at := ceilDiv(mark, a.Quantum)
	if at <= now/a.Quantum-a.Length/a.Quantum {
		return // they have left the window
	}
	if len(s.Tail) == 0 {
		s.Start = at
	}
	at = max(at, s.Start)
	if at-s.Start > math.MaxUint32 {
		return // mark is not ours
	}
	offset := uint32(at - s.Start)
	first := sort.Search(len(s.Tail), func(i int) bool { return s.Tail[i] >= offset })
	switch {
	case delta < 0:
		s.Tail = slices.Delete(s.Tail, first, first+int(min(-delta, int64(len(s.Tail)-first))))
	case delta > 0:
		s.Tail = slices.Insert(s.Tail, first, slices.Repeat([]uint32{offset}, int(min(delta, int64(l.Requests))))...)
		s.Tail = slices.Delete(s.Tail, 0, max(0, len(s.Tail)-int(l.Requests)))
	}
	if len(s.Tail) == 0 {
		*s = State{}
	}
}

func (slidingLog) expires(l *descriptor.Limit, s *State) int64 {
	if len(s.Tail) == 0 {
		return 0
	}
	return (s.Start+int64(s.Tail[len(s.Tail)-1]))*l.Arithmetic.Quantum + l.Arithmetic.Length
}

func (slidingLog) rejectedMove() bool { return true }

func (slidingLog) entries(l *descriptor.Limit) int { return int(l.Requests) }

func (slidingLog) permits(_ *descriptor.Limit, countDenied bool) Permits {
	if countDenied {
		return Permits{} // every denied hit postpones the end of the other denials
	}
	return Permits{Kind: PermitsOfLog}
}

func (slidingLog) boundary(_ *descriptor.Limit, o *Outcome) time.Duration { return o.ResetAfter }

func (slidingLog) redis(*descriptor.Limit) *RedisForm { return &logForm }

var logForm = RedisForm{
	Shape: scripts.Log, least: 12,
	Room: func(_ *descriptor.Limit, entries int) int { return 8 + 4*entries },
	Parameters: func(l *descriptor.Limit, _ int64, entries int) (p1, p2, p3 int64) {
		return l.Arithmetic.Length, l.Arithmetic.Quantum, int64(entries)
	},
	decode: func(seen []byte, _ *descriptor.Limit, _ int64, tail []uint32) (State, []uint32) {
		entries, tail := decodeTail(seen[8:], tail)
		return State{Start: int64(binary.BigEndian.Uint64(seen)), Tail: entries}, tail
	},
}

// notAfter moves the entries of a log that are later than a time to that time.
func (s *State) notAfter(at int64) {
	s.Start = min(s.Start, at)
	last := uint32(min(at-s.Start, math.MaxUint32))
	for i := len(s.Tail) - 1; i >= 0 && s.Tail[i] > last; i-- {
		s.Tail[i] = last
	}
}

// append drops the entries before first and adds n entries at a time that is not before theirs.
func (s *State) append(first int, at int64, n int) {
	s.Tail = slices.Delete(s.Tail, 0, first)
	if len(s.Tail) == 0 {
		s.Start = at
	} else if at-s.Start > math.MaxUint32 {
		shift := s.Tail[0]
		for i := range s.Tail {
			s.Tail[i] -= shift
		}
		s.Start += int64(shift)
	}
	for range n {
		s.Tail = append(s.Tail, uint32(at-s.Start))
	}
}
