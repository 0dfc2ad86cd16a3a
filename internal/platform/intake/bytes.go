package intake

import (
	"math/bits"
	"sync"
)

// small is the size, in bytes, up to which a connection may use twice the overdraft.
const small = 64 << 10

// Bytes bounds the memory for the clients of a listener, for each connection and for all of them. A connection that
// exceeds its bound is closed. When the class is full, a connection is closed that uses at least half as much as any
// other.
//
// The memory of a connection counts until the transport returns it, even after the connection is closed: only then is
// the memory free.
type Bytes struct {
	connection int64
	class      *Class

	mu sync.Mutex
	// open connections with memory, by its number of bits: each entry is the first of a list
	holders [65]*Conn
	leaving int64 // memory of closed connections
}

// NewBytes returns a bound for each connection, in bytes. The class bounds all connections together.
func NewBytes(connection int64, class *Class) *Bytes {
	return &Bytes{connection: connection, class: class}
}

// Held returns the memory of all connections, in bytes.
func (b *Bytes) Held() int64 { return b.class.Held() }

// heldBytes counts the memory of one connection, in bytes. It is guarded by the mutex of Bytes.
type heldBytes struct {
	all        int64
	closed     bool  // the connection is closed, or soon will be
	prev, next *Conn // neighbours in the list of Bytes.holders
}

// hasRoom reports whether a connection may use more bytes.
func (b *Bytes) hasRoom(c *Conn, n int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.bytes.all+n <= b.connection && (b.class == nil || n <= b.class.Free())
}

// adjust counts more bytes, or less. It returns false if the connection must be closed.
func (b *Bytes) adjust(c *Conn, more int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	grows := b.reserve(c, c.bytes.all+more)
	fits := c.bytes.all <= b.connection
	var cut []*Conn
	if grows && !c.bytes.closed {
		var room bool
		cut, room = b.makeRoom(c)
		fits = fits && room
	}
	if !fits {
		b.leave(c)
	}
	b.mu.Unlock()
	for _, other := range cut {
		other.cut(tooManyBytes)
	}
	return fits
}

// reserve sets the memory of a connection, and reports whether it has grown.
func (b *Bytes) reserve(c *Conn, n int64) (grows bool) {
	more := n - c.bytes.all
	if more == 0 {
		return false
	}
	b.class.Add(more)
	if c.bytes.closed {
		b.leaving += more
		c.bytes.all = n
		return false
	}
	b.unlink(c)
	c.bytes.all = n
	b.link(c)
	return more > 0
}

// makeRoom closes the connections with the most memory until the memory that they will return suffices. It returns
// them, and whether c may stay.
func (b *Bytes) makeRoom(c *Conn) (cut []*Conn, stays bool) {
	for b.class != nil && b.class.Free()+b.leaving < 0 {
		most := b.most()
		if most == nil || bits.Len64(uint64(most.bytes.all)) == bits.Len64(uint64(c.bytes.all)) {
			return cut, false
		}
		b.leave(most)
		cut = append(cut, most)
	}
	if b.class == nil {
		return nil, true
	}
	most := b.class.budget.total / overdraft
	if c.bytes.all <= small {
		most *= 2 // it waits for the others
	}
	return cut, b.class.Free() >= -most
}

// overdraft is the part of the budget that connections may use beyond it while closed connections still use memory.
const overdraft = 8

// most returns a connection that uses at least half as much as any other.
func (b *Bytes) most() *Conn {
	for i := len(b.holders) - 1; i > 0; i-- {
		if b.holders[i] != nil {
			return b.holders[i]
		}
	}
	return nil
}

func (b *Bytes) link(c *Conn) {
	if c.bytes.all <= 0 {
		return
	}
	first := &b.holders[bits.Len64(uint64(c.bytes.all))]
	c.bytes.prev, c.bytes.next = nil, *first
	if *first != nil {
		(*first).bytes.prev = c
	}
	*first = c
}

func (b *Bytes) unlink(c *Conn) {
	if c.bytes.all <= 0 {
		return
	}
	if c.bytes.prev != nil {
		c.bytes.prev.bytes.next = c.bytes.next
	} else {
		b.holders[bits.Len64(uint64(c.bytes.all))] = c.bytes.next
	}
	if c.bytes.next != nil {
		c.bytes.next.bytes.prev = c.bytes.prev
	}
	c.bytes.prev, c.bytes.next = nil, nil
}

// leave records that a connection is closed, or soon will be.
func (b *Bytes) leave(c *Conn) {
	if c.bytes.closed {
		return
	}
	b.unlink(c)
	c.bytes.closed = true
	b.leaving += c.bytes.all
}

// release removes a closed connection. Its memory counts until the transport returns it.
func (b *Bytes) release(c *Conn) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leave(c)
}
