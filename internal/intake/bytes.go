package intake

import (
	"sync"
	"sync/atomic"
)

const (
	// step is how many bytes a connection may hold before all connections are asked: messages are usually a few hundred
	// bytes, so that usually nobody is.
	step = 64 << 10

	// slack is what a call may leave behind without being counted: padding, and messages of calls that were refused.
	slack = 1 << 10
)

// Bytes bounds what clients have sent of messages that are not complete, for one connection and for all. It is counted
// from the frames that come in and the calls that end, so it is exact while no call is in flight, and an estimate
// otherwise. Over the bound of one connection that connection is closed; over the bound of all, the one that holds most.
type Bytes struct {
	connection, all int64

	reserved atomic.Int64 // by all connections, in steps

	mu      sync.Mutex
	holders map[*Conn]struct{} // with a reservation
}

// NewBytes makes a bound: so many bytes for one connection, and so many for all.
func NewBytes(connection, all int64) *Bytes {
	return &Bytes{connection: connection, all: all, holders: make(map[*Conn]struct{})}
}

// Held is about how many bytes are held, where connections hold more than a little.
func (b *Bytes) Held() int64 { return b.reserved.Load() }

// held is what one connection holds.
type held struct {
	bytes    atomic.Int64
	reserved atomic.Int64 // changed under the mutex of Bytes
	closed   bool         // under that mutex: the connection reserves nothing more
}

// add counts bytes that came in on a connection. It returns false if the connection has to go.
func (b *Bytes) add(c *Conn, n int64) bool {
	if b == nil {
		return true
	}
	if now := c.bytes.bytes.Add(n); now <= c.bytes.reserved.Load()+step {
		return true
	}
	return b.adjust(c)
}

// ended counts the bytes of a call that has ended.
func (b *Bytes) ended(c *Conn, size int, last bool) {
	if b == nil {
		return
	}
	for {
		was := c.bytes.bytes.Load()
		is := max(0, was-2*int64(size)-slack)
		if last {
			is = 0 // nothing is under way
		}
		if was == is || c.bytes.bytes.CompareAndSwap(was, is) {
			break
		}
	}
	if c.bytes.reserved.Load() > c.bytes.bytes.Load()+step {
		b.adjust(c)
	}
}

// adjust brings a connection's reservation up to date. It returns false if the connection has to go.
func (b *Bytes) adjust(c *Conn) bool {
	b.mu.Lock()
	holds := c.bytes.bytes.Load()
	b.reserve(c, holds/step*step)
	var most *Conn
	if b.reserved.Load() > b.all {
		for other := range b.holders {
			if most == nil || other.bytes.reserved.Load() > most.bytes.reserved.Load() {
				most = other
			}
		}
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
	b.reserved.Add(n - c.bytes.reserved.Swap(n))
	if n > 0 {
		b.holders[c] = struct{}{}
	} else {
		delete(b.holders, c)
	}
}

// release forgets a connection that is closed.
func (b *Bytes) release(c *Conn) {
	if b == nil {
		return
	}
	b.mu.Lock()
	c.bytes.closed = true
	b.reserve(c, 0)
	b.mu.Unlock()
}
