package simulate

import "github.com/ratelimitd/ratelimitd/internal/accesslog"

// batchSize is how many requests go from one goroutine to the next at once: few enough that all batches stay in a
// processor's cache.
const batchSize = 256

// batch is some requests in the order of time, and what the engines made of them.
type batch struct {
	asked    []asked
	arena    accesslog.Arena
	verdicts [2][]verdict // of the rules, and of those that they are compared with
	refusals [2][]refusal // what the verdicts are made of
}

// asked is one request.
type asked struct {
	accesslog.Request
	at   int64 // microseconds since 1970
	log  int32
	line int
}

func (b *batch) reset() {
	clear(b.asked)
	b.asked = b.asked[:0]
	b.arena.Reset()
	for i := range b.verdicts {
		b.verdicts[i] = b.verdicts[i][:0]
		b.refusals[i] = b.refusals[i][:0]
	}
}

// verdict is what an engine answered to a request.
type verdict struct {
	outcome outcome
	rule    int32 // the first rule that refused it, by Rule.Index; -1 if none did
	from    int32 // all that refused it are batch.refusals[from:to]
	to      int32
}

type outcome uint8

const (
	failed outcome = iota // no decision could be made
	allowed
	refused
)
