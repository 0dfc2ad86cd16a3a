package assigner

import (
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// bucket is a bucket id of a domain, with all its subscriptions.
type bucket struct {
	key    string // key in Assigner.buckets
	serial uint64 // serial number, for short names of its pool
	domain string
	id     []descriptor.Entry // sorted by key; the strings are parts of the bucket's key; never changed

	entries    []descriptor.Entry // the id in the order in which rules match it; never changed
	pool       *pool              // nil until its limits are found
	place      int                // index in pool.buckets
	terms      *terms             // its terms in the pool; nil while it has no subscriptions
	was        *terms             // previous terms
	unresolved bool               // listed in Assigner.unresolved
	unread     bool               // its counters could not be read at the last attempt
	reserved   int                // bytes reserved for a pool; 0 once it has one

	subscriptions []*subscription

	uncharged uint64 // passed requests that are not charged yet
	slice     uint64 // how many of them are charged per second
}

// subscription is a stream's interest in a bucket.
type subscription struct {
	stream *Stream
	bucket *bucket
	place  int // index in bucket.subscriptions

	member   *quota.Subscriber // nil while the bucket has no pool
	since    time.Time
	deferred bool    // it enters the pool with its next report
	back     bool    // the client has used the bucket before, on another stream
	rate     float64 // passed requests per second before, as the client measured them
	demand   float64 // passed and denied requests per second before

	queued    bool // listed in Stream.queue
	abandoned time.Time
	state     state

	allowed, denied uint64 // reported before the bucket had a pool
}

// state is the progress of a subscription towards its end.
type state uint8

const (
	active     state = iota
	abandoning       // the client will be told to forget the bucket
	forgotten        // the client has been told so
)

// spread is the number of seconds over which a report is charged to limits with short windows. A report covers five
// seconds: if all its hits were charged together, they would use up five windows of a second in one.
const spread = 5

// charge is a number of passed requests to count.
type charge struct {
	domain   string
	entries  []descriptor.Entry
	requests uint64
}

// addCharge adds passed requests.
func (b *bucket) addCharge(n uint64) {
	b.uncharged += min(n, math.MaxUint32)
	b.slice = (b.uncharged + spread - 1) / spread
}

// takeCharge returns the number of requests to charge now.
func (b *bucket) takeCharge(short bool) uint64 {
	n := b.uncharged
	if short {
		n = min(n, b.slice)
	}
	b.uncharged -= n
	return n
}

// plausible returns the number of passed requests to accept from a client's report: at most as many as its assignments
// allowed.
func (s *subscription) plausible(now time.Time, allowed uint64) uint64 {
	p := s.bucket.pool
	if _, fixed := p.planner.Fixed(); fixed {
		return min(allowed, math.MaxUint32)
	}
	most := s.member.Most(now)
	if s.member.Held.Kind == quota.None { // the client decides by its own configuration
		r := p.planner.Rate()
		most = max(most, (r.Burst+r.PerSecond*renewEvery.Seconds())/float64(len(p.planner.Subscribers()))+1)
	}
	return uint64(min(float64(min(allowed, math.MaxUint32)), math.Ceil(most)))
}
