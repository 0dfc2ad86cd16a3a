package redisconn

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection in the client library's pool.
type conn struct {
	net.Conn
	socket     syscall.RawConn // socket, even beneath TLS; nil if it cannot be looked at
	encrypted  bool
	dialer     *dialer
	generation uint64
	onClose    func() // safe to call more than once
	heard      bool   // the server has sent something

	replies  replies
	rejected error // the server exceeded a bound: nothing more is read

	breaker   *breaker  // breaker of the server; may be nil
	readBy    time.Time // read deadline of the current answer; zero means none
	readSince int64     // when SetReadDeadline was called, by the breaker's clock

	aborted atomic.Bool // the caller has left, so reads end immediately
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.onClose()
	return c.Conn.Close()
}

var errRetired = errors.New("the connection was retired")

// SyscallConn lets the pool see whether the other side has hung up before a call uses the connection. With TLS it looks
// itself.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.generation != c.dialer.generation.Load() {
		return nil, errRetired
	}
	if c.socket == nil {
		return alive{}, nil // a call finds out
	}
	if c.encrypted {
		if err := c.checkIdle(); err != nil {
			return nil, err
		}
		return alive{}, nil
	}
	return c.socket, nil
}

// SetDeadline implements net.Conn. It is used before calls are made: the breaker does not end a read.
func (c *conn) SetDeadline(t time.Time) error {
	c.readBy = time.Time{}
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn. The read ends earlier if the server is silent for as long as its breaker allows.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readBy = t
	if c.breaker == nil || t.IsZero() {
		return c.Conn.SetReadDeadline(t)
	}
	c.readSince = c.breaker.now()
	return c.Conn.SetReadDeadline(earlier(t, time.Now().Add(c.breaker.opts.Silence)))
}

func (c *conn) Read(p []byte) (int, error) {
	if c.rejected != nil {
		return 0, c.rejected
	}
	n, err := c.Conn.Read(p)
	for err != nil && n == 0 && IsTimeout(err) && c.extendRead() {
		n, err = c.Conn.Read(p)
	}
	if err != nil && n == 0 && IsTimeout(err) && !c.readBy.IsZero() &&
		c.Conn.SetReadDeadline(time.Now().Add(lastRead)) == nil {
		// The answer may have arrived long ago while this process had no CPU: a read after its deadline does not look for
		// data.
		n, err = c.Conn.Read(p)
	}
	if n > 0 {
		c.heard = true
		if c.breaker != nil {
			c.breaker.received()
		}
	}
	if c.rejected = c.replies.scan(p[:n]); c.rejected != nil {
		c.dialer.broken()
		return 0, c.rejected
	}
	if err != nil {
		c.dialer.broken()
		closed := !c.heard && !c.encrypted && !IsTimeout(err)
		if err = ioError(err); closed {
			err = advised(err, c.dialer.advice(noAnswer))
		}
	}
	return n, err
}

// lastRead is how long a connection is read once more after its deadline.
const lastRead = time.Millisecond

// extendRead sets the next deadline of a read whose last one has passed. It returns false if the call's time is up, or
// if the server has sent nothing lately on any connection.
func (c *conn) extendRead() bool {
	now := time.Now()
	if c.breaker == nil || c.readBy.IsZero() || !now.Before(c.readBy) {
		return false
	}
	left := c.breaker.opts.Silence - time.Duration(c.breaker.now()-max(c.readSince, c.breaker.lastByte.Load()))
	return left > 0 && c.Conn.SetReadDeadline(earlier(c.readBy, now.Add(left))) == nil && !c.aborted.Load()
}

// abort ends the read that is in progress, and those after it. Any goroutine may call it.
func (c *conn) abort() {
	c.aborted.Store(true) // first: a read that moves its deadline looks at it afterwards
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
}

// usable returns an error if a connection that is idle cannot serve a call.
func (c *conn) usable() error {
	if err := c.SetDeadline(time.Time{}); err != nil {
		return err
	}
	socket, err := c.SyscallConn()
	if err != nil || c.encrypted || c.socket == nil {
		return err
	}
	waiting, err := unread(socket)
	if err == nil && waiting {
		err = errUnasked
	}
	return err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (c *conn) Write(p []byte) (int, error) {
	c.replies.asked.Store(true)
	n, err := c.Conn.Write(p)
	if err != nil {
		c.dialer.broken()
		err = ioError(err)
	}
	return n, err
}
