package intake

import (
	"sync"
	"sync/atomic"
)

const (
	// step is the unit of reservations. A connection that holds less does not touch the counter of all connections.
	// Messages are usually a few hundred bytes, so this is the usual case.
	step = 64 << 10

	// slack is subtracted in addition to the message when a call ends: for padding, and for messages of rejected calls.
	slack = 1 << 10
)

// Bytes bounds what is held for clients, on one connection and on all together: incomplete messages, and with Conn.Hold
// anything else that a transport holds. A connection over its bound is closed. When all together are over their bound, the connection
// that holds most is closed.
//
// Where a Conn counts frames itself, incoming frames add to the count and calls that end subtract from it, so the count is
// exact while no call is in flight and an estimate otherwise.
type Bytes struct {
	connection, all int64

	reserved atomic.Int64 // by all connections

	mu      sync.Mutex
	holders map[*Conn]struct{} // with a reservation
}

// NewBytes returns the bounds for one connection and for all connections together, in bytes.
func NewBytes(connection, all int64) *Bytes {
	return &Bytes{connection: connection, all: all, holders: make(map[*Conn]struct{})}
}

// Held returns approximately how many bytes are held. Less than a step of what is estimated is not counted.
func (b *Bytes) Held() int64 { return b.reserved.Load() }

// heldBytes counts the bytes of one connection.
type heldBytes struct {
	bytes    atomic.Int64 // estimated
	reserved atomic.Int64 // of the estimate, a multiple of step; changed under the mutex of Bytes

	// Under the mutex of Bytes.
	exact  int64 // what a transport holds
	all    int64 // reserved of either kind
	closed bool  // the connection reserves nothing more
}

// received counts bytes that arrived on a connection. It returns false if the connection must be closed.
func (b *Bytes) received(c *Conn, n int64) bool {
	if b == nil {
		return true
	}
	if now := c.bytes.bytes.Add(n); now <= c.bytes.reserved.Load()+step {
		return true
	}
	return b.adjust(c, 0)
}

// ended subtracts the bytes of a call that has ended. The size counts twice because frames may carry padding; last
// means that no other call is in flight.
func (b *Bytes) ended(c *Conn, size int, last bool) {
	if b == nil {
		return
	}
	for {
		was := c.bytes.bytes.Load()
		is := max(0, was-2*int64(size)-slack)
		if last {
			is = 0 // no message is incomplete
		}
		if was == is || c.bytes.bytes.CompareAndSwap(was, is) {
			break
		}
	}
	if reserved := c.bytes.reserved.Load(); reserved > c.bytes.bytes.Load()+step || last && reserved > 0 {
		b.adjust(c, 0)
	}
}

// adjust updates a connection's reservation, with more bytes that a transport holds. It returns false if the connection must
// be closed.
func (b *Bytes) adjust(c *Conn, more int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	c.bytes.exact += more
	estimate := c.bytes.bytes.Load()
	c.bytes.reserved.Store(estimate / step * step)
	b.reserve(c, estimate/step*step+c.bytes.exact)
	holds := estimate + c.bytes.exact
	var most *Conn
	if b.reserved.Load() > b.all {
		for other := range b.holders {
			if most == nil || other.bytes.all > most.bytes.all {
				most = other
			}
		}
		most.bytes.closed = true
		b.reserve(most, 0)
	}
	b.mu.Unlock()
	if most != nil && most != c {
		most.cut(tooManyBytes)
	}
	return holds <= b.connection && most != c
}

// reserve sets a connection's reservation.
func (b *Bytes) reserve(c *Conn, n int64) {
	if c.bytes.closed {
		n = 0
	}
	b.reserved.Add(n - c.bytes.all)
	c.bytes.all = n
	if n > 0 {
		b.holders[c] = struct{}{}
	} else {
		delete(b.holders, c)
	}
}

// release removes a closed connection.
func (b *Bytes) release(c *Conn) {
	if b == nil {
		return
	}
	b.mu.Lock()
	c.bytes.closed = true
	b.reserve(c, 0)
	b.mu.Unlock()
}
