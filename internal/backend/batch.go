package backend

// Batch gathers requests that arrived together, so that a store sends them together. A request started with a batch
// waits until Send, unless its store can settle it immediately. A nil Batch gathers nothing: each request is sent
// immediately.
//
// One goroutine at a time may use a batch. After Send it is empty, and can be used again.
type Batch struct {
	outboxes []addressed
}

// Outbox has the requests of a batch that one part of a store will send.
type Outbox interface {
	// Send sends the requests, and empties the outbox. It does not wait for answers.
	Send()
}

type addressed struct {
	to     any
	outbox Outbox
}

// maxOutboxes is how many outboxes a batch keeps for the next requests. It is more than a usual cluster has nodes.
const maxOutboxes = 64

// To returns the outbox for a part of a store, or nil if the batch has no outbox for it.
func (b *Batch) To(part any) Outbox {
	for i := range b.outboxes {
		if b.outboxes[i].to == part {
			return b.outboxes[i].outbox
		}
	}
	return nil
}

// Add adds an outbox for a part of a store.
func (b *Batch) Add(part any, o Outbox) { b.outboxes = append(b.outboxes, addressed{part, o}) }

// Send sends the gathered requests.
func (b *Batch) Send() {
	for i := range b.outboxes {
		b.outboxes[i].outbox.Send()
	}
	if len(b.outboxes) > maxOutboxes {
		b.outboxes = nil
	}
}

// CallerWaits stands for the batch of a request for whose answer the goroutine that calls Start waits: the store may
// block that goroutine, and settle the request in it. Nothing is gathered in CallerWaits.
var CallerWaits = new(Batch)
