package assigner

import "time"

// shrink decides when enough memory is free to return it to the system. Go would do that minutes later, because an idle
// service allocates too little to trigger a collection.
type shrink struct {
	peak int // the most bytes since memory was last returned
	last time.Time
}

const (
	muchFree    = 32 << 20
	shrinkEvery = 30 * time.Second
)

// due reports whether memory must be returned, when kept bytes are in use.
func (s *shrink) due(now time.Time, kept int) bool {
	s.peak = max(s.peak, kept)
	if s.peak-kept < muchFree || kept > s.peak/2 || now.Sub(s.last) < shrinkEvery {
		return false
	}
	s.peak, s.last = kept, now
	return true
}
