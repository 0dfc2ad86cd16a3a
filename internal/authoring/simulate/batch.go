package simulate

import "github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"

// batchSize is the number of requests that one goroutine passes to the next in one batch. It is small enough that all
// batches stay in the CPU cache.
const batchSize = 256

// batch is a number of requests in order of time, and the verdicts of the engines.
type batch struct {
	requests []replayedRequest
	arena    accesslog.Arena
	verdicts [2][]verdict // verdicts of the new rules, and of the old ones if rules are compared
	denials  [2][]denial  // the denials behind the verdicts
}

// replayedRequest is one request.
type replayedRequest struct {
	accesslog.Request
	at   int64 // microseconds since 1970
	log  int32
	line int
}

func (b *batch) reset() {
	clear(b.requests)
	b.requests = b.requests[:0]
	b.arena.Reset()
	for i := range b.verdicts {
		b.verdicts[i] = b.verdicts[i][:0]
		b.denials[i] = b.denials[i][:0]
	}
}

// verdict is an engine's answer to a request.
type verdict struct {
	outcome outcome
	rule    int32 // the first rule that denied it, by Rule.Index; -1 if none did
	from    int32 // its denials are batch.denials[from:to]
	to      int32

	overridden bool // a descriptor was decided with an override
}

type outcome uint8

const (
	failed outcome = iota // no decision could be made
	allowed
	denied
)
