package redis

import (
	"slices"
	"time"
)

const (
	// fewFlushes is how many flushes may be in flight at any time: with two, one is prepared while Redis works on the
	// other.
	fewFlushes = 2
	// Lanes is how many connections of a store's client should be lanes: as many as flushes are usually in flight.
	Lanes = fewFlushes
	// mostFlushes is how many flushes may be in flight if Redis is far away: one more for each spread that passes, but no
	// more than there are connections. With only two, a new request would wait for half a round trip, and might then have
	// too little time left for its round trip.
	mostFlushes = 16
	spread      = time.Millisecond
	// maxFlush is about how many takes are sent in one flush. It is bounded because Redis does nothing else during a
	// script. Takes of a hot counter are sent as one, so a flush may have more of them: the more wait for one counter, the
	// less each costs.
	maxFlush    = 64
	maxFlushHot = 512
	// hotRatio is the ratio of takes to sent takes from which a flush is one of hot counters. Such flushes are sent one at
	// a time: a second one in parallel would split the takes that wait for the same counter, and cost Redis as much as the
	// first.
	hotRatio = 4
)

// schedule is the state of a queue: which requests wait, and how many flushes are in flight. It decides when requests
// are sent. It is plain data that the queue's lock guards: time is an argument, and no method blocks.
type schedule struct {
	few, most int // flushes that may be in flight: few at any time, most if their starts are spread in time

	waiting []*inFlight // requests in the order of arrival
	claimed bool        // a worker will flush the waiting requests: it has a slot, or waits for one
	flushes int         // flushes in flight
	latest  int64       // start of the latest flush, in nanoseconds
	slow    bool        // the flush that ended last took longer than spread
	hot     bool        // most takes of the last full flush were of a few counters
}

func newSchedule(connections int) schedule {
	most := min(mostFlushes, max(connections, 1))
	return schedule{few: min(fewFlushes, most), most: most}
}

// begin reserves a slot for another flush. It returns false if no flush may start now.
func (s *schedule) begin(now int64) bool {
	few := s.few
	if s.hot {
		few = 1
	}
	if s.flushes >= s.most || s.flushes >= few && now-s.latest < int64(spread) {
		return false
	}
	s.flushes++
	s.latest = now
	return true
}

// idle reports whether nothing waits or is in flight.
func (s *schedule) idle() bool { return len(s.waiting) == 0 && !s.claimed && s.flushes == 0 }

// add lets requests wait. It returns true if they must be flushed immediately: nothing waited before, and there is a
// free slot. It has then reserved the slot, and claimed the requests.
func (s *schedule) add(now int64, requests ...*inFlight) (begun bool) {
	begun = len(s.waiting) == 0 && !s.claimed && s.begin(now)
	s.claimed = s.claimed || begun
	s.waiting = append(s.waiting, requests...)
	return begun
}

// claim reserves the waiting requests for one worker. It returns false if nothing waits, or another worker has claimed
// them.
func (s *schedule) claim() bool {
	if s.claimed || len(s.waiting) == 0 {
		return false
	}
	s.claimed = true
	return true
}

// take moves the requests of the next flush from waiting to batch. It calls gone for requests whose callers have left.
func (s *schedule) take(batch []*inFlight, gone func(*inFlight)) []*inFlight {
	most := maxFlush
	if s.hot {
		most = maxFlushHot
	}
	takes, n := 0, 0
	for ; n < len(s.waiting) && takes < most; n++ {
		r := s.waiting[n]
		if !r.markSent() {
			gone(r)
			continue
		}
		takes += len(r.request.Takes)
		batch = append(batch, r)
	}
	rest := copy(s.waiting, s.waiting[n:])
	clear(s.waiting[rest:])
	s.waiting = s.waiting[:rest]
	return batch
}

// drop removes the requests whose callers have left from waiting, and calls gone for each.
func (s *schedule) drop(gone func(*inFlight)) {
	s.waiting = slices.DeleteFunc(s.waiting, func(r *inFlight) bool {
		left := r.isAnswered()
		if left {
			gone(r)
		}
		return left
	})
}

// ended records the end of a flush that started at began, and whether it was one of hot counters.
func (s *schedule) ended(began, now int64, hot bool) {
	s.slow, s.hot = now-began >= int64(spread), hot
}

// free gives a slot back.
func (s *schedule) free() { s.flushes-- }
