package assigner

import (
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// bucket is a bucket id of a domain, with all its subscriptions.
type bucket struct {
	key    string // in Assigner.buckets
	serial uint64 // stands for the key where a short name suffices
	domain string
	id     []descriptor.Entry // sorted by key, parts of the key; never changed

	entries    []descriptor.Entry // in the order in which they are matched; never changed
	pool       *pool              // nil: its limits have not been found yet
	place      int                // in pool.buckets
	terms      *terms             // on which it is counted in its pool; nil while it has no subscriptions
	was        *terms             // before
	unresolved bool               // it is in Assigner.unresolved
	unread     bool               // its counters could not be read when they were looked at last
	reserved   int                // bytes for the pool that it may need; none once it has a pool

	subscriptions []*subscription

	uncharged uint64 // requests that have passed and are not counted yet
	slice     uint64 // how many of them are counted per second
}

// subscription is a stream's interest in a bucket.
type subscription struct {
	stream *Stream
	bucket *bucket
	place  int // in bucket.subscriptions

	member   *quota.Subscriber // nil while the bucket has no pool
	since    time.Time
	deferred bool    // it enters its bucket's pool with its next report
	back     bool    // the client has used the bucket before, on another stream
	rate     float64 // the rate that it was seen to use then
	demand   float64 // and the rate that was asked for

	queued    bool // in Stream.queue
	abandoned time.Time
	state     state

	allowed, denied uint64 // reported while the bucket had no pool
}

// state is how far a subscription is on its way to its end.
type state uint8

const (
	active     state = iota
	abandoning       // the client will be told to forget the bucket
	forgotten        // the client has been told so
)

// spread is over how many seconds a report is charged to limits with short windows. A report covers five seconds: all
// its hits at once would use up five windows of a second in one.
const spread = 5

// charge is what must be counted.
type charge struct {
	domain   string
	entries  []descriptor.Entry
	requests uint64
}

// addCharge adds requests that have passed.
func (b *bucket) addCharge(n uint64) {
	b.uncharged += min(n, math.MaxUint32)
	b.slice = (b.uncharged + spread - 1) / spread
}

// takeCharge returns what must be counted now.
func (b *bucket) takeCharge(short bool) uint64 {
	n := b.uncharged
	if short {
		n = min(n, b.slice)
	}
	b.uncharged -= n
	return n
}

// plausible returns how many passed requests a client may report: at most as many as its assignments allowed.
func (s *subscription) plausible(now time.Time, allowed uint64) uint64 {
	p := s.bucket.pool
	if _, fixed := p.planner.Fixed(); fixed {
		return min(allowed, math.MaxUint32)
	}
	most := s.member.Most(now)
	if s.member.Held.Kind == quota.None { // it decides by its own configuration
		r := p.planner.Rate()
		most = max(most, (r.Burst+r.PerSecond*renewEvery.Seconds())/float64(len(p.planner.Subscribers()))+1)
	}
	return uint64(min(float64(min(allowed, math.MaxUint32)), math.Ceil(most)))
}
