package server

import (
	"sync/atomic"
	"time"
)

// sampler picks the first so many of each second. The zero value picks none.
type sampler struct {
	perSecond int64

	second  atomic.Int64 // the one that is being counted, since the Unix epoch
	count   atomic.Int64 // in it
	skipped atomic.Int64 // since the last that was picked
}

// pick says whether this is among the first of its second. Where two seconds meet, one too many may be.
func (s *sampler) pick(now time.Time) bool {
	second := now.Unix()
	if before := s.second.Load(); before != second && s.second.CompareAndSwap(before, second) {
		s.count.Store(0)
	}
	if s.count.Add(1) <= s.perSecond {
		return true
	}
	s.skipped.Add(1)
	return false
}

// missed is how many were not picked since it was last asked.
func (s *sampler) missed() int64 { return s.skipped.Swap(0) }
