package intake

import (
	"bytes"
	"container/list"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Reason is the reason for closing a connection.
type Reason int

// Reasons found by a transport.
const (
	HeadersWithoutEnd = headers    // a header block in too many frames
	NotReading        = notReading // the client does not read answers, or opens no windows for them
	TooManyFrames     = frames     // frames outside of calls
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
	handshaking
	tooMany // closed immediately
)

var reasons = [...]string{
	evicted: "evicted", noCall: "no_call", noMessage: "no_message", notReading: "not_reading", headers: "headers",
	tooManyBytes: "bytes",
	frames:       "frames", pings: "pings", noPong: "no_pong", handshaking: "handshake", tooMany: "too_many",
}

// never is the time of the last call of a connection without a call.
const never = 0

var epoch = time.Now().Add(-time.Second) // so that no time is 0

// clock returns the monotonic time as a number that fits an atomic.
func clock() int64 { return int64(time.Since(epoch)) }

const (
	// slowWrite is the longest time for a normal write. After that the client counts as not reading its answers, and
	// nothing more is read from its connection.
	slowWrite = int64(time.Millisecond)

	// writeBuffer bounds the kernel's buffer for a client that does not read; by default it grows to megabytes. An answer
	// has about fifty bytes.
	writeBuffer = 256 << 10

	// readAhead is how many bytes are still read during a slow write. The answers to requests of that size fit into one
	// write of the transport, so answers for a slow client do not accumulate.
	readAhead = 16 << 10

	// fullRead is the smallest size of a full buffer that indicates more data to read.
	fullRead = 1 << 10
)

// Memory of net/http for the header of a request: some copies of its text, and some bytes for each line, however short.
// A header of five-byte lines needs 20 to 23 times its size.
const (
	headerCopies = 2
	perLine      = 110
)

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn

	listener *Listener
	peer     *peer
	accepted int64 // time of Accept, by clock

	inAll, inPeer *list.Element // guarded by the listener's mutex; nil after removal from the lists

	last    atomic.Int64    // time of the last message, by clock; never without one
	calls   atomic.Int64    // calls in flight
	streams atomic.Int64    // streams of Streams
	await   [2]atomic.Int64 // calls without a message, by the parity of the period in which they started
	turns   atomic.Uint32   // current period
	bytes   heldBytes

	handshake *handshake // TLS handshake, or nil

	inBody atomic.Bool  // received data is the body of a request over HTTP/1, not a header
	header atomic.Int64 // memory for that header, in bytes

	writing atomic.Int64 // start of the current write, by clock; 0 without one
	ahead   int          // bytes read during a slow write
	behind  bool         // the last read filled its buffer, so more data has probably arrived
	waiting atomic.Bool  // the reader waits for the writer
	isCut   atomic.Bool  // the connection was closed for exceeding a bound
	mu      sync.Mutex
	written sync.Cond // signals the end of a write, or of the connection; uses mu
	closed  bool      // guarded by mu
}

func newConn(raw net.Conn, l *Listener, p *peer, now int64) *Conn {
	c := &Conn{Conn: raw, listener: l, peer: p, accepted: now}
	c.written.L = &c.mu
	if l.handshakes != nil {
		c.handshake = &handshake{all: l.handshakes, conn: c, turn: make(chan struct{}, 1)}
	}
	if tcp, ok := raw.(*net.TCPConn); ok && l.options.Write > 0 {
		_ = tcp.SetWriteBuffer(writeBuffer)
	}
	return c
}

// Read implements net.Conn. It waits while the client does not read its answers. A client that sends more than fits
// into one read waits its turn: if it ran until the runtime interrupts it, after 10 ms, a hundred such clients would
// delay all others by half a second.
func (c *Conn) Read(p []byte) (int, error) {
	if c.behind {
		runtime.Gosched()
	}
	c.handshake.pause()
	n, err := c.Conn.Read(p)
	if !c.handshake.proceed() {
		return 0, net.ErrClosed
	}
	c.behind = n == len(p) && n >= fullRead
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

// awaitWrite waits for the end of the write that started at since.
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
	c.handshake.pause()
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
	c.releaseHeader()
	c.handshake.finish()
	c.listener.options.Bytes.release(c)
	return c.Conn.Close()
}

// Secured records that the TLS handshake is complete.
func (c *Conn) Secured() { c.handshake.finish() }

// receivedHeader counts the memory for a part of an HTTP/1 header. It returns false if that is too much: then the
// connection is closed.
func (c *Conn) receivedHeader(p []byte) bool {
	if c.listener.options.Bytes == nil {
		return true
	}
	n := int64(headerCopies*len(p) + perLine*bytes.Count(p, newline))
	c.header.Add(n)
	fits := c.Hold(n)
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed { // perhaps before the header was added
		c.releaseHeader()
	}
	return fits
}

var newline = []byte{'\n'}

// BeginBody records that the header of an HTTP/1 request has arrived. It counts as memory until EndRequest. Data that
// arrives in between is the request's body, and does not count.
func (c *Conn) BeginBody() {
	if !c.inBody.Swap(true) {
		c.listener.options.Places.Add(c.listener.options.Request)
	}
}

// EndRequest records that an HTTP/1 request is answered, and its body was read to its end, or that its connection has
// ended.
func (c *Conn) EndRequest() {
	if c.inBody.Swap(false) {
		c.listener.options.Places.Add(-c.listener.options.Request)
	}
	c.releaseHeader()
}

// releaseHeader returns the memory for a request's header.
func (c *Conn) releaseHeader() {
	if n := c.header.Swap(0); n > 0 {
		c.Hold(-n)
	}
}

// Hold adds to the memory of a transport for this connection: messages, header fields and answers. It returns false if
// that is too much: then the connection is closed.
func (c *Conn) Hold(n int64) bool {
	if c.listener.options.Bytes.adjust(c, n) {
		return true
	}
	c.cut(tooManyBytes)
	return false
}

// HasRoom reports whether a transport may use more memory for this connection.
func (c *Conn) HasRoom(n int64) bool { return c.listener.options.Bytes.hasRoom(c, n) }

// IsCut reports whether the connection was closed for exceeding a bound. Data received before must not be processed any
// further.
func (c *Conn) IsCut() bool { return c.isCut.Load() }

// Cut closes a connection that exceeds a bound of a transport.
func (c *Conn) Cut(why Reason) { c.cut(why) }

// Count counts a connection that a transport closes itself, after a message to the client.
func (c *Conn) Count(why Reason) {
	c.listener.metrics.closed[why].Inc()
	c.listener.options.Log.Debug("connection closed", "listener", c.listener.options.Name, "peer", c.peer.key, "reason",
		reasons[why])
}

// cut closes a connection that exceeds a bound. Bytes returned later may still exceed it, and are not counted again.
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

// idle reports whether a connection is unused, although its client has had time to make a call.
func (c *Conn) idle(now int64) bool {
	return c.calls.Load() == 0 && c.streams.Load() == 0 &&
		now-max(c.accepted, c.last.Load()) >= int64(c.listener.options.Settled)
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

// turn starts a new period of waiting for messages. It reports whether a message is missing for a call that started
// before the previous period.
func (c *Conn) turn() bool {
	next := c.turns.Load() + 1
	if c.await[next%2].Load() > 0 {
		return true
	}
	c.turns.Store(next)
	return false
}
