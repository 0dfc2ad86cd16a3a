package logging

import (
	"sync/atomic"
	"time"
)

// Sampler picks the first few events of each second, so that a flood of events does not flood the log. The zero value
// picks none.
type Sampler struct {
	PerSecond int64 // number of events to pick

	second  atomic.Int64 // current second, since the Unix epoch
	count   atomic.Int64 // events in it
	skipped atomic.Int64 // events since the last call of Missed
}

// Pick reports whether this event is among the first of its second. At the boundary of two seconds, it may pick one too
// many.
func (s *Sampler) Pick(now time.Time) bool {
	second := now.Unix()
	if before := s.second.Load(); before != second && s.second.CompareAndSwap(before, second) {
		s.count.Store(0)
	}
	if s.count.Add(1) <= s.PerSecond {
		return true
	}
	s.skipped.Add(1)
	return false
}

// Missed returns how many events were not picked since its last call.
func (s *Sampler) Missed() int64 { return s.skipped.Swap(0) }
