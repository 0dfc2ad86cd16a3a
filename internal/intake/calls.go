package intake

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// peerFactor bounds the calls of a peer to this multiple of the free calls: one peer alone may use eight ninths of all.
const peerFactor = 8

// Calls bounds the calls in flight. A connection may have as many as are still free, minus an eighth of those of its
// peer. So one connection alone gets nearly half of all, and one peer at most eight ninths. However many connections
// flood the server, some calls stay free for other connections, even for those of the same peer.
type Calls struct {
	most  int64
	total atomic.Int64

	refusedAll, refusedPeer, refusedConnection prometheus.Counter
}

// NewCalls returns a bound of most calls.
func NewCalls(most int, m *Metrics) *Calls {
	return &Calls{
		most:              int64(most),
		refusedAll:        m.callsRefused.WithLabelValues("all"),
		refusedPeer:       m.callsRefused.WithLabelValues("peer"),
		refusedConnection: m.callsRefused.WithLabelValues("connection"),
	}
}

// InFlight returns the number of calls in flight.
func (b *Calls) InFlight() int64 { return b.total.Load() }

// InFlight is a call in flight. The zero value is no call.
type InFlight struct {
	conn     *Conn
	period   uint32
	awaits   bool // its message has not arrived yet
	detached bool // it counts no longer
}

// Begin admits a call before its message is read. If it returns false, the caller refuses the call and must not call
// End. The connection may be nil. If b is nil, each call is admitted, and none is counted.
func (b *Calls) Begin(c *Conn) (InFlight, bool) {
	if b == nil {
		return InFlight{}, true
	}
	if c != nil {
		c.enter()
	}
	free := b.most - b.total.Add(1)
	if free < 0 {
		b.total.Add(-1)
		b.refusedAll.Inc()
		if c != nil {
			c.listener.options.Bytes.ended(c, 0, false)
		}
		return InFlight{}, false
	}
	if c == nil {
		return InFlight{}, true
	}
	n, ofPeer := c.calls.Add(1), c.peer.calls.Add(1)
	if n > free+1 || n > free+2-ofPeer/peerFactor {
		refused := b.refusedPeer
		if n > free+1 {
			refused = b.refusedConnection
		}
		refused.Inc()
		c.peer.calls.Add(-1)
		c.calls.Add(-1)
		b.total.Add(-1)
		c.listener.options.Bytes.ended(c, 0, false) // its message still arrives
		return InFlight{}, false
	}
	period := c.turns.Load() % 2
	c.await[period].Add(1)
	return InFlight{conn: c, period: period, awaits: true}, true
}

// Arrived records when the message of a call arrived.
func (b *Calls) Arrived(call *InFlight, at time.Time) {
	if call.conn == nil || !call.awaits {
		return
	}
	call.awaits = false
	call.conn.await[call.period].Add(-1)
	call.conn.last.Store(int64(at.Sub(epoch)))
}

// End ends a call whose message had size bytes.
func (b *Calls) End(call InFlight, size int) {
	if b == nil {
		return
	}
	if !call.detached {
		b.total.Add(-1)
	}
	c := call.conn
	if c == nil {
		return
	}
	if call.awaits {
		c.await[call.period].Add(-1)
	}
	left := c.calls.Load()
	if !call.detached {
		c.peer.calls.Add(-1)
		left = c.calls.Add(-1)
	}
	c.listener.options.Bytes.ended(c, size, left == 0 && c.streams.Load() == 0)
}
