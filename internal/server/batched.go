package server

import (
	"context"
	"errors"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// batched is one request of a batch. It is reused.
type batched struct {
	request  limiter.Request
	decision limiter.Decision
	err      error // set if there is no decision
	size     int   // size of its message, in bytes

	call *rateLimitCall
	done func(error) // finish as a value, created once
}

var batchedPool = sync.Pool{New: func() any {
	r := new(batched)
	r.done = r.finish
	return r
}}

// maxKeptMessages is the size up to which messages share one string and their memory is reused, in bytes.
const maxKeptMessages = 64 << 10

// batchPool holds the calls of batches, whose answers are longer than others.
var batchPool = sync.Pool{New: func() any { return new(rateLimitCall) }}

// callSize is the approximate memory of a call in flight, without a long message.
const callSize = 3 << 10

// Approximate memory of a decoded request until it is answered, in bytes for each descriptor and each entry.
const descriptorSize, entrySize = 384, 32

// decodedSize returns the approximate memory of a call's requests, without its message. A few descriptors are already
// part of callSize.
func (c *rateLimitCall) decodedSize() (n int64) {
	size := func(req *limiter.Request) {
		n += descriptorSize * int64(len(req.Descriptors))
		for i := range req.Descriptors {
			n += entrySize * int64(len(req.Descriptors[i].Entries))
		}
	}
	if !c.method.batches {
		size(&c.request)
	}
	for _, r := range c.batch {
		size(&r.request)
	}
	if n <= callSize {
		return 0
	}
	return n
}

// addBatched adds a request to a batch.
func (c *rateLimitCall) addBatched() *batched {
	r := batchedPool.Get().(*batched)
	r.call, r.err = c, nil
	r.request.Reservation, r.request.Descriptors = nil, r.request.Descriptors[:0]
	c.batch = append(c.batch, r)
	return r
}

// A request in a batch counts as one call in flight. Every further 16 descriptors or 64 entries, whichever gives more,
// count as one more. A few bytes of a compressed batch can encode many of them, and each uses memory for itself and for
// its answer.
const (
	descriptorsPerCall = 16
	entriesPerCall     = 64
)

// places returns the number of calls in flight that a request with this many entries counts as.
func (r *batched) places(entries int) int {
	return max(1, (len(r.request.Descriptors)+descriptorsPerCall-1)/descriptorsPerCall,
		(entries+entriesPerCall-1)/entriesPerCall)
}

// startBatch starts deciding the requests of a batch. It returns true if all are decided. Otherwise it calls done
// later, once, from another goroutine.
func (c *rateLimitCall) startBatch(ctx context.Context, b *limiter.Batch, done func(error)) (decided bool) {
	c.decided = done
	c.deciding.Store(int32(len(c.batch)) + 1)
	for _, r := range c.batch {
		if r.err != nil || r.start(ctx, b) {
			c.deciding.Add(-1)
		}
	}
	return c.deciding.Add(-1) == 0
}

// start starts deciding a request, and reports whether it is decided. A panic becomes an error.
func (r *batched) start(ctx context.Context, b *limiter.Batch) (decided bool) {
	decided = true // also after a panic
	defer async.Recover(&r.err)
	decided, err := r.call.method.decider.Start(ctx, r.call.start, b, &r.request, &r.decision, r.done)
	if decided {
		r.err = err
	}
	return decided
}

// finish records a decision that start did not return.
func (r *batched) finish(err error) {
	c := r.call
	r.err = err
	if c.deciding.Add(-1) == 0 {
		c.decided(nil)
	}
}

// releaseBatch releases the requests of a batch.
func (c *rateLimitCall) releaseBatch() {
	for _, r := range c.batch {
		_, panicked := errors.AsType[*async.PanicError](r.err) // something may still refer to it
		if !panicked && r.size <= maxKept && c.size <= c.method.most {
			r.call, r.err, r.decision.Metadata = nil, nil, nil
			batchedPool.Put(r)
		}
	}
	clear(c.batch)
	c.batch = c.batch[:0]
}
