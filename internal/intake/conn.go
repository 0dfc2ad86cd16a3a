package intake

import (
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// reason is why a connection was closed.
type reason int

const (
	inTime reason = iota
	evicted
	noCall
	noMessage
	notReading
	headers
	tooManyBytes
)

var reasons = [...]string{evicted: "evicted", noCall: "no_call", noMessage: "no_message", notReading: "not_reading", headers: "headers", tooManyBytes: "bytes"}

// never is the time of the last call on a connection that had none.
const never = 0

var epoch = time.Now().Add(-time.Second) // so that no time is 0

// clock is the monotonic time, as a number that fits an atomic.
func clock() int64 { return int64(time.Since(epoch)) }

const (
	// slowWrite is how long a write may take before its connection is read from no more: the client does not read.
	slowWrite = int64(time.Millisecond)

	// readAtOnce is how many bytes of HTTP/2 are read at once: some twenty calls.
	readAtOnce = 2 << 10

	// mostComing is how many calls of a connection may be read and not begun before it is read on; pause bounds the wait
	// for them, because some never begin: those that the transport itself refuses.
	mostComing = 16
	pause      = 20 * time.Millisecond

	// writeBuffer bounds what the kernel keeps for a client that does not read: it would let it grow to megabytes. Answers
	// are some fifty bytes.
	writeBuffer = 256 << 10

	// readAhead is how many bytes are read all the same while a write takes long. Requests of so many bytes have answers
	// that fit one write of the transport's, so that the answers that wait for a slow client do not add up.
	readAhead = 16 << 10
)

// Conn is a connection that a Listener accepted.
type Conn struct {
	net.Conn

	listener *Listener
	peer     *peer
	addr     addr
	accepted int64 // by clock

	inAll, inPeer *list.Element // under the listener's mutex; nil: its place was given back

	last  atomic.Int64    // when a message last arrived, by clock; never: none did
	calls atomic.Int64    // in flight
	await [2]atomic.Int64 // calls whose message has not arrived: those that began in even and in odd periods
	turns atomic.Uint32   // the present period
	bytes held

	coming  atomic.Int64  // calls that were read and have not begun
	entered chan struct{} // gets a value when coming falls while the reader waits for that
	pausing atomic.Bool   // the reader does

	writing atomic.Int64 // when the write that is under way began, by clock; 0: there is none
	ahead   int          // bytes that were read while a write took long
	waiting atomic.Bool  // the reader waits for the writer
	mu      sync.Mutex
	written sync.Cond // with mu: a write ended, or the connection is closed
	closed  bool      // under mu
}

// addr is the address of a connection's client. It leads back to the connection: HTTP/2 libraries hand the address to a
// call, and not the connection.
type addr struct {
	net.Addr
	conn *Conn
}

// Of is the connection whose RemoteAddr this is; nil where a Listener did not accept it.
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

// Read implements net.Conn. It waits while the client does not read what was written to it.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	if c.listener.options.ReadsAreCalls {
		c.last.Store(clock())
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
	if c.coming.Load() <= mostComing {
		return
	}
	c.pausing.Store(true)
	defer c.pausing.Store(false)
	late := time.NewTimer(pause)
	defer late.Stop()
	for c.coming.Load() > mostComing {
		select {
		case <-c.entered:
		case <-late.C:
			c.coming.Store(0)
			return
		}
	}
}

// enter says that a call that was read begins.
func (c *Conn) enter() {
	left := c.coming.Add(-1)
	if left < 0 {
		c.coming.Add(1) // not one of those that were read: the reader waited in vain
	}
	if left <= mostComing && c.pausing.Load() {
		select {
		case c.entered <- struct{}{}:
		default:
		}
	}
}

// awaitWrite waits until the write that began at a time has ended.
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

// cut closes a connection that is over a bound.
func (c *Conn) cut(why reason) {
	c.listener.metrics.closed[why].Inc()
	c.listener.options.Log.Debug("connection closed", "listener", c.listener.options.Name, "peer", c.peer.key, "reason", reasons[why])
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // what a client does not read must not stay in the kernel
	}
	_ = c.Close()
}

// idle says whether nothing happens on a connection, and its client had time to make a call.
func (c *Conn) idle(now int64) bool {
	return c.calls.Load() == 0 && now-max(c.accepted, c.last.Load()) >= int64(c.listener.options.Settled)
}

// late says which time bound a connection is over.
func (c *Conn) late(now int64, o *Options) reason {
	if began := c.writing.Load(); o.Write > 0 && began != 0 && now-began > int64(o.Write) {
		return notReading
	}
	if o.FirstCall > 0 && c.last.Load() == never && now-c.accepted > int64(o.FirstCall) {
		return noCall
	}
	return inTime
}

// turn begins a new period of waiting for messages. It says whether one is missing whose call began before the period that
// ends.
func (c *Conn) turn() bool {
	next := c.turns.Load() + 1
	if c.await[next%2].Load() > 0 {
		return true
	}
	c.turns.Store(next)
	return false
}
