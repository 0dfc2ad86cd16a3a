package transport

import (
	"crypto/tls"
	"time"

	"golang.org/x/net/http2"
)

// drainPing is the content of the ping after the first GOAWAY. Its answer shows that the client has seen the GOAWAY.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}

// drainTimeout is how long a client that is asked to leave may take to answer a ping.
const drainTimeout = 5 * time.Second

// leaveTimeout is how long a client may take to close a connection after its last answer.
const leaveTimeout = time.Second

// leave ends a connection whose last answer is in the socket. It leaves the client time to read it and to close the
// connection: if a frame arrived after this side had closed it, the kernel would reset the connection, and drop answers
// that the client has not read.
func (c *conn) leave() {
	c.closeTLS()
	c.sock.flushed()
	c.sock.closeWrite()
	time.AfterFunc(leaveTimeout, c.close)
}

// closeTLS tells the client of an encrypted connection that no more data follows. Without this alert the client must
// assume that an attacker cut the connection.
func (c *conn) closeTLS() {
	c.mu.Lock()
	plain := c.plain
	c.mu.Unlock()
	if encrypted, ok := plain.(*tls.Conn); ok {
		_ = encrypted.CloseWrite()
	}
}

// drain asks the client to leave. Requests are still served until the client has answered a ping.
func (c *conn) drain() {
	c.mu.Lock()
	if c.leaving || c.isClosed {
		c.mu.Unlock()
		return
	}
	if !c.ready {
		c.mustLeave = true
		c.mu.Unlock()
		time.AfterFunc(drainTimeout, c.closeUnready) // some clients never complete the handshake
		return
	}
	c.leaving, c.lastServed = true, maxStreamID
	c.out = appendGoAway(c.out, maxStreamID, http2.ErrCodeNo, nil)
	c.out = appendPing(c.out, false, drainPing)
	c.mu.Unlock()
	c.flush()
	time.AfterFunc(drainTimeout, func() { // some clients do not answer pings
		c.drained()
		c.flush()
	})
}

// closeUnready closes a connection without a complete handshake.
func (c *conn) closeUnready() {
	c.mu.Lock()
	ready := c.ready
	c.mu.Unlock()
	if !ready {
		c.close()
	}
}

// drained is called when the client knows that it must leave.
func (c *conn) drained() {
	c.mu.Lock()
	if c.leaving && c.lastServed == maxStreamID {
		c.lastServed = c.latest
		c.out = appendGoAway(c.out, c.latest, http2.ErrCodeNo, nil)
	}
	c.mu.Unlock()
}

// goAway ends the connection with an error code.
func (c *conn) goAway(code http2.ErrCode, debug []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving, c.lastServed = true, c.latest
	c.out = appendGoAway(c.out, c.latest, code, debug)
}
