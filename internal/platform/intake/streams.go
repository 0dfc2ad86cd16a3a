package intake

import "sync/atomic"

// Streams bounds calls that stay open for days. They do not count as calls in flight: otherwise a few proxies would use
// up the bound for all clients. They are divided among connections and peers like the calls in flight.
type Streams struct {
	most  int64
	total atomic.Int64
}

// NewStreams returns a bound of most streams.
func NewStreams(most int) *Streams { return &Streams{most: int64(most)} }

// Open returns the number of open streams.
func (b *Streams) Open() int64 { return b.total.Load() }

// Rejection is the bound that a stream exceeds: "all", "peer" or "connection". It is empty for an accepted stream.
type Rejection string

// The bounds.
const (
	OverAll        Rejection = "all"
	OverPeer       Rejection = "peer"
	OverConnection Rejection = "connection"
)

// Begin counts a stream. If it rejects the stream, the caller must not call End. The connection may be nil. A
// connection with a stream is in use: it neither waits for its first call, nor makes room for another connection.
func (b *Streams) Begin(c *Conn) Rejection {
	free := b.most - b.total.Add(1)
	if free < 0 {
		b.total.Add(-1)
		return OverAll
	}
	if c == nil {
		return ""
	}
	n, ofPeer := c.streams.Add(1), c.peer.streams.Add(1)
	rejected := Rejection("")
	switch {
	case n > free+1:
		rejected = OverConnection
	case n > free+2-ofPeer/peerFactor:
		rejected = OverPeer
	}
	if rejected != "" {
		b.End(c)
		return rejected
	}
	c.last.Store(clock())
	return ""
}

// End ends a stream.
func (b *Streams) End(c *Conn) {
	b.total.Add(-1)
	if c != nil {
		c.peer.streams.Add(-1)
		c.streams.Add(-1)
	}
}
