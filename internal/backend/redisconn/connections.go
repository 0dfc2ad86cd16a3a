package redisconn

import (
	"sync"
	"sync/atomic"
)

// Connections counts the connections of one client. The zero value is ready.
type Connections struct {
	opened, closed atomic.Uint64
}

// Opened returns how many connections have been opened.
func (c *Connections) Opened() uint64 { return c.opened.Load() }

// Closed returns how many of them have been closed.
func (c *Connections) Closed() uint64 { return c.closed.Load() }

// Open returns how many are open.
func (c *Connections) Open() uint64 {
	closed := c.closed.Load() // first, so that the difference is not negative
	return c.opened.Load() - closed
}

// add counts a connection. It returns a function that counts its end, once.
func (c *Connections) add() (closed func()) {
	if c == nil {
		return func() {}
	}
	c.opened.Add(1)
	return sync.OnceFunc(func() { c.closed.Add(1) })
}
