package intake

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// peerFactor bounds the calls of a peer to this multiple of the free calls: a single peer may use eight ninths of all.
const peerFactor = 8

// Calls bounds the calls in flight. A connection may have as many calls as are still free, minus an eighth of the calls
// of its peer. So a single connection may use nearly half of all calls, and one peer at most eight ninths. However many
// connections flood the server, some calls stay free for other connections, even of the same peer.
type Calls struct {
	most  int64
	total atomic.Int64

	rejectedAll, rejectedPeer, rejectedConnection, rejectedBytes prometheus.Counter
}

// NewCalls returns a bound of most calls.
func NewCalls(most int, m *Metrics) *Calls {
	return &Calls{
		most:               int64(most),
		rejectedAll:        m.callsRejected.WithLabelValues("all"),
		rejectedPeer:       m.callsRejected.WithLabelValues("peer"),
		rejectedConnection: m.callsRejected.WithLabelValues("connection"),
		rejectedBytes:      m.callsRejected.WithLabelValues("bytes"),
	}
}

// InFlight returns the number of calls in flight.
func (b *Calls) InFlight() int64 { return b.total.Load() }

// NoRoom counts a call that a transport rejects before Begin, for lack of memory.
func (b *Calls) NoRoom() { b.rejectedBytes.Inc() }

// InFlight is a call in flight. The zero value is not a call.
type InFlight struct {
	conn   *Conn
	period uint32
	more   int32 // additional calls that it counts as
	awaits bool  // its message has not arrived yet
}

// Begin counts a call before its message is read. If it returns false, the caller must reject the call and must not
// call End. The connection may be nil.
func (b *Calls) Begin(c *Conn) (InFlight, bool) {
	if !b.admit(c, 1) {
		return InFlight{}, false
	}
	if c == nil {
		return InFlight{}, true
	}
	period := c.turns.Load() % 2
	c.await[period].Add(1)
	return InFlight{conn: c, period: period, awaits: true}, true
}

// admit counts calls of a connection, or returns false if there are too many.
func (b *Calls) admit(c *Conn, calls int64) bool {
	free := b.most - b.total.Add(calls)
	if free < 0 {
		b.total.Add(-calls)
		b.rejectedAll.Inc()
		return false
	}
	if c == nil {
		return true
	}
	n, ofPeer := c.calls.Add(calls), c.peer.calls.Add(calls)
	if n <= free+1 && n <= free+2-ofPeer/peerFactor {
		return true
	}
	rejected := b.rejectedPeer
	if n > free+1 {
		rejected = b.rejectedConnection
	}
	rejected.Inc()
	c.peer.calls.Add(-calls)
	c.calls.Add(-calls)
	b.total.Add(-calls)
	return false
}

// More counts a call that has arrived as additional calls, because it causes as much work. If it returns false, the
// caller must reject the call, and end it as usual.
func (b *Calls) More(call *InFlight, calls int) bool {
	if calls <= 0 {
		return true
	}
	if !b.admit(call.conn, int64(calls)) {
		return false
	}
	call.more += int32(calls)
	return true
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

// End ends a call.
func (b *Calls) End(call InFlight) {
	calls := 1 + int64(call.more)
	b.total.Add(-calls)
	c := call.conn
	if c == nil {
		return
	}
	if call.awaits {
		c.await[call.period].Add(-1)
	}
	c.peer.calls.Add(-calls)
	c.calls.Add(-calls)
}
