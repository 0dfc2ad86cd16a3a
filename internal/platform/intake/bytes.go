package intake

import (
	"math/bits"
	"sync"
)

// small is the number of bytes up to which a connection may use twice the overdraft.
const small = 64 << 10

// Bytes bounds the memory that is held for the clients of a listener, for each connection and for all of them. A
// connection over its bound is closed. When the class has no room, a connection is closed that holds at least half as
// much as any other.
//
// What a transport holds for a connection counts until the transport gives it back, also after the connection is
// closed: only then has the memory become free.
type Bytes struct {
	connection int64
	class      *Class

	mu sync.Mutex
	// open connections that hold something, by the length of that number in bits; each is the first of a list
	holders [65]*Conn
	leaving int64 // held by closed connections
}

// NewBytes returns the bound for one connection, in bytes, and for all connections together, which the class has.
func NewBytes(connection int64, class *Class) *Bytes {
	return &Bytes{connection: connection, class: class}
}

// Held returns how many bytes are held.
func (b *Bytes) Held() int64 { return b.class.Held() }

// heldBytes counts the bytes of one connection. It is changed under the mutex of Bytes.
type heldBytes struct {
	all        int64
	closed     bool  // the connection is closed, or soon will be
	prev, next *Conn // in Bytes.holders
}

// hasRoom reports whether more bytes may be held for a connection.
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

// reserve sets how many bytes a connection holds, and reports whether they are more than before.
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

// makeRoom closes the connections that hold most until what they will give back is enough. It returns them, and whether
// c may stay.
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

// overdraft is which part of the budget connections may hold beyond it while closed connections give theirs back.
const overdraft = 8

// most returns a connection that holds at least half as much as any other.
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

// release removes a closed connection. What a transport holds for it counts until the transport gives it back.
func (b *Bytes) release(c *Conn) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leave(c)
}
