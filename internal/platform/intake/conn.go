package intake

import (
	"bytes"
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Reason is why a connection was closed.
type Reason int

// Reasons that a transport finds.
const (
	HeadersWithoutEnd = headers    // a header block in too many frames
	NotReading        = notReading // the client does not read answers, or does not let them be sent
	TooManyFrames     = frames     // frames that belong to no call
	TooManyPings      = pings
	PingNotAnswered   = noPong
)

const (
	inTime Reason = iota
	evicted
	noCall
	noMessage
	notReading
	headers
	tooManyBytes
	frames
	pings
	noPong
)

var reasons = [...]string{
	evicted: "evicted", noCall: "no_call", noMessage: "no_message", notReading: "not_reading", headers: "headers", tooManyBytes: "bytes",
	frames: "frames", pings: "pings", noPong: "no_pong",
}

// never is the time of the last call of a connection that has had no call.
const never = 0

var epoch = time.Now().Add(-time.Second) // so that no time is 0

// clock returns the monotonic time as a number that fits an atomic.
func clock() int64 { return int64(time.Since(epoch)) }

const (
	// slowWrite is how long a write may take. After that the client counts as one that does not read its answers, and
	// nothing more is read from its connection.
	slowWrite = int64(time.Millisecond)

	// readAtOnce is how many bytes of HTTP/2 are read at once: about twenty calls.
	readAtOnce = 2 << 10

	// maxComing is how many calls of a connection may be read but not begun; then reading waits. maxPause bounds that
	// wait, because calls that the transport itself rejects never begin.
	maxComing = 16
	maxPause  = 20 * time.Millisecond

	// writeBuffer bounds what the kernel keeps for a client that does not read; without it the buffer grows to
	// megabytes. An answer has about fifty bytes.
	writeBuffer = 256 << 10

	// readAhead is how many bytes are still read during a slow write. The answers to requests of that size fit into one
	// write of the transport, so answers for a slow client do not pile up.
	readAhead = 16 << 10
)

// How much memory net/http needs for the header of a request: some copies of its text, and some bytes for each line, however short. A header
// of five-byte lines needs 20 to 23 times its size.
const (
	headerCopies = 2
	perLine      = 110
)

// Conn is a connection that a Listener accepted.
type Conn struct {
	net.Conn

	listener *Listener
	peer     *peer
	addr     addr
	accepted int64 // by clock

	inAll, inPeer *list.Element // under the listener's mutex; nil: removed from the lists

	last    atomic.Int64    // when a message last arrived, by clock; never if none did
	calls   atomic.Int64    // in flight
	streams atomic.Int64    // that stay open
	await   [2]atomic.Int64 // calls whose message has not arrived, by the parity of the period in which they began
	turns   atomic.Uint32   // the current period
	bytes   heldBytes

	inBody atomic.Bool // what arrives is the body of a request over HTTP/1, not a header

	coming  atomic.Int64  // calls that were read and have not begun
	entered chan struct{} // receives a value when coming falls while the reader waits for that
	pausing atomic.Bool   // the reader waits for entered

	writing atomic.Int64 // when the current write began, by clock; 0: there is none
	ahead   int          // bytes that were read during a slow write
	waiting atomic.Bool  // the reader waits for the writer
	isCut   atomic.Bool  // the connection was closed for exceeding a bound
	mu      sync.Mutex
	written sync.Cond // with mu: a write ended, or the connection is closed
	closed  bool      // under mu
}

// addr is the address of a connection's client. It refers back to the connection, because HTTP/2 libraries pass only
// the address to a call.
type addr struct {
	net.Addr
	conn *Conn
}

// Of returns the connection whose RemoteAddr this is, or nil if no Listener accepted it.
func Of(a net.Addr) *Conn {
	if a, ok := a.(*addr); ok {
		return a.conn
	}
	return nil
}

func newConn(raw net.Conn, l *Listener, p *peer, now int64) *Conn {
	c := &Conn{Conn: raw, listener: l, peer: p, accepted: now}
	c.addr = addr{raw.RemoteAddr(), c}
	c.written.L = &c.mu
	c.entered = make(chan struct{}, 1)
	if tcp, ok := raw.(*net.TCPConn); ok && l.options.Write > 0 {
		_ = tcp.SetWriteBuffer(writeBuffer)
	}
	return c
}

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return &c.addr }

// Read implements net.Conn. It waits while the client does not read its answers.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	if c.listener.options.ReadsAreCalls {
		c.last.Store(clock())
		if !c.inBody.Load() && !c.receivedHeader(p[:n]) {
			return n, net.ErrClosed
		}
	}
	since := c.writing.Load()
	if since == 0 || clock()-since < slowWrite {
		c.ahead = 0
		return n, err
	}
	if c.ahead += n; c.ahead > readAhead {
		c.awaitWrite(since)
		c.ahead = 0
	}
	return n, err
}

// awaitCalls waits until most of the calls that were read have begun.
func (c *Conn) awaitCalls() {
	if c.coming.Load() <= maxComing {
		return
	}
	c.pausing.Store(true)
	defer c.pausing.Store(false)
	late := time.NewTimer(maxPause)
	defer late.Stop()
	for c.coming.Load() > maxComing {
		select {
		case <-c.entered:
		case <-late.C:
			c.coming.Store(0)
			return
		}
	}
}

// enter records that a call begins.
func (c *Conn) enter() {
	left := c.coming.Add(-1)
	if left < 0 {
		c.coming.Add(1) // the reader has already given up waiting for this call
	}
	if left <= maxComing && c.pausing.Load() {
		select {
		case c.entered <- struct{}{}:
		default:
		}
	}
}

// awaitWrite waits until the write that began at since has ended.
func (c *Conn) awaitWrite(since int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting.Store(true)
	for c.writing.Load() == since && !c.closed {
		c.written.Wait()
	}
	c.waiting.Store(false)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Store(clock())
	n, err := c.Conn.Write(p)
	c.writing.Store(0)
	if c.waiting.Load() {
		c.mu.Lock()
		c.written.Broadcast()
		c.mu.Unlock()
	}
	return n, err
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	c.mu.Lock()
	c.closed = true
	c.written.Broadcast()
	c.mu.Unlock()
	c.listener.options.Bytes.release(c)
	return c.Conn.Close()
}

// receivedHeader counts a part of the header of a request over HTTP/1 as the memory that it needs. It returns false if that is too much:
// then the connection is closed.
func (c *Conn) receivedHeader(p []byte) bool {
	if c.listener.options.Bytes == nil {
		return true
	}
	return c.Received(int64(headerCopies*len(p) + perLine*bytes.Count(p, newline)))
}

var newline = []byte{'\n'}

// BeginBody records that the header of a request over HTTP/1 has arrived. It counts as held until EndRequest; what arrives in between is
// the request's body, and does not count.
func (c *Conn) BeginBody() { c.inBody.Store(true) }

// EndRequest records that a request over HTTP/1 is answered, and its body was read to its end.
func (c *Conn) EndRequest() {
	c.inBody.Store(false)
	c.listener.options.Bytes.ended(c, 0, true)
}

// Received counts bytes of messages that arrived. It returns false if that is too much: then the connection is closed.
func (c *Conn) Received(n int64) bool {
	if c.listener.options.Bytes.received(c, n) {
		return true
	}
	c.cut(tooManyBytes)
	return false
}

// Hold adds to the bytes that a transport holds for this connection: of messages, header fields and answers. It returns false
// if that is too much: then the connection is closed. A transport that calls it does not call Received.
func (c *Conn) Hold(n int64) bool {
	if c.listener.options.Bytes.adjust(c, n) {
		return true
	}
	c.cut(tooManyBytes)
	return false
}

// HasRoom reports whether a transport may hold more bytes for this connection.
func (c *Conn) HasRoom(n int64) bool { return c.listener.options.Bytes.hasRoom(c, n) }

// IsCut reports whether the connection was closed for exceeding a bound. What has arrived on it before must not be worked on any more.
func (c *Conn) IsCut() bool { return c.isCut.Load() }

// Cut closes a connection on which a transport has found that it is over a bound.
func (c *Conn) Cut(why Reason) { c.cut(why) }

// Count counts a connection that a transport closes itself, because it has something to say to the client first.
func (c *Conn) Count(why Reason) {
	c.listener.metrics.closed[why].Inc()
	c.listener.options.Log.Debug("connection closed", "listener", c.listener.options.Name, "peer", c.peer.key, "reason", reasons[why])
}

// cut closes a connection that is over a bound. What a transport gives back later may still be over it, and is not counted again.
func (c *Conn) cut(why Reason) {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if again {
		return
	}
	c.isCut.Store(true)
	c.Count(why)
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // unread answers must not stay in the kernel
	}
	_ = c.Close()
}

// idle reports whether a connection is not in use although its client has had time to make a call.
func (c *Conn) idle(now int64) bool {
	return c.calls.Load() == 0 && c.streams.Load() == 0 && now-max(c.accepted, c.last.Load()) >= int64(c.listener.options.Settled)
}

// late returns the time bound that a connection exceeds.
func (c *Conn) late(now int64, o *Options) Reason {
	if began := c.writing.Load(); o.Write > 0 && began != 0 && now-began > int64(o.Write) {
		return notReading
	}
	if o.FirstCall > 0 && c.last.Load() == never && now-c.accepted > int64(o.FirstCall) {
		return noCall
	}
	return inTime
}

// turn begins a new period of waiting for messages. It reports whether a message is missing whose call began before the
// period that now ends.
func (c *Conn) turn() bool {
	next := c.turns.Load() + 1
	if c.await[next%2].Load() > 0 {
		return true
	}
	c.turns.Store(next)
	return false
}
