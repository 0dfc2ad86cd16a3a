package assigner

import "time"

// shrink decides when enough memory has become free to give it back to the system. On its own Go does that minutes
// later, because a service that is idle allocates too little to start a collection.
type shrink struct {
	peak int // the most bytes since memory was given back
	last time.Time
}

const (
	muchFree    = 32 << 20
	shrinkEvery = 30 * time.Second
)

// due reports whether memory must be given back, now that kept bytes are in use.
func (s *shrink) due(now time.Time, kept int) bool {
	s.peak = max(s.peak, kept)
	if s.peak-kept < muchFree || kept > s.peak/2 || now.Sub(s.last) < shrinkEvery {
		return false
	}
	s.peak, s.last = kept, now
	return true
}
