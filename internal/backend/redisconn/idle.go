package redisconn

import (
	"errors"
	"syscall"
	"time"
)

var errUnasked = errors.New("the server sent data that no call asked for")

// checkIdle returns an error if an idle TLS connection cannot serve a call: the server has hung up, or has sent data
// that no call asked for.
//
// The client library would look at the socket itself. Under TLS the socket may hold session tickets, which a server
// sends after the handshake. The library takes them for a push message (in pools of sentinels) and waits for the rest
// of it, without a deadline and with a lock held: no connection would be made any more. Other pools would close the
// connection. So checkIdle reads the tickets, and the library gets no socket to look at.
func (c *conn) checkIdle() error {
	waiting, err := unread(c.socket)
	if err != nil || !waiting {
		return err
	}
	if err := c.Conn.SetReadDeadline(time.Now().Add(lastRead)); err != nil {
		return err
	}
	var b [1]byte
	n, err := c.Conn.Read(b[:]) // TLS handles tickets within Read
	switch {
	case n > 0:
		return errUnasked
	case err != nil && !IsTimeout(err):
		return err
	}
	return c.Conn.SetReadDeadline(time.Time{})
}

// alive stands in for the socket of an idle connection that checkIdle has found usable. The library finds nothing to
// read in it.
type alive struct{}

// Control implements syscall.RawConn.
func (alive) Control(func(uintptr)) error { return nil }

// Read implements syscall.RawConn.
func (alive) Read(func(uintptr) bool) error { return nil }

// Write implements syscall.RawConn.
func (alive) Write(func(uintptr) bool) error { return nil }

var _ syscall.RawConn = alive{}
