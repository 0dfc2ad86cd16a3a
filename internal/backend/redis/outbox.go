package redis

import (
	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// outbox holds the requests of a batch for one queue. They enter the queue together: under one lock, with one reading
// of the clock, and in the same flush where it has room.
type outbox struct {
	queue    *queue
	requests []*inFlight
}

// keepOutbox is how many requests an outbox keeps room for.
const keepOutbox = 1024

// outbox returns the queue's outbox in a batch.
func (q *queue) outbox(b *backend.Batch) *outbox {
	if o, ok := b.To(q).(*outbox); ok {
		return o
	}
	o := &outbox{queue: q}
	b.Add(q, o)
	return o
}

// Send implements backend.Outbox.
func (o *outbox) Send() {
	if len(o.requests) == 0 {
		return
	}
	if !o.queue.put(false, o.requests...) {
		for _, f := range o.requests {
			o.queue.sendAfterClose(f)
		}
	}
	clear(o.requests)
	if o.requests = o.requests[:0]; cap(o.requests) > keepOutbox {
		o.requests = nil
	}
}
