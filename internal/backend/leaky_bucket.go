package backend

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// leakyBucket is a bucket of waiting requests: an allowed request may have to wait for its turn.
type leakyBucket struct{ bucket }

func (leakyBucket) permits(l *descriptor.Limit, _ bool) Permits {
	if l.NoDelay != descriptor.NoDelayAll {
		return Permits{} // each place in the queue has a separate delay, which only the store can compute
	}
	return Permits{Kind: PermitsOfBucket}
}
