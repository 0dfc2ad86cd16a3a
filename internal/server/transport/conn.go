package transport

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

const (
	readBuffer = 4 << 10 // about thirty calls

	// maxUnsent is how many bytes of answers may wait for a client that does not read. Then nothing more is read from it.
	maxUnsent = 256 << 10

	// receiveWindow is how many bytes a client may send ahead, on a stream and on the whole connection. Credit is given
	// back when creditAfter bytes have been used.
	receiveWindow = 1 << 20
	creditAfter   = receiveWindow / 4

	initialWindow = 65_535 // of RFC 9113, in both directions
	maxWindow     = 1<<31 - 1

	// maxFrame is the largest frame that is accepted: the smallest bound that HTTP/2 allows.
	maxFrame = 16 << 10

	// maxIdleFrames is how many frames a client may send that belong to no request, between two answers and within
	// idlePeriod. Without the bound, a client could keep the server busy with frames that cost it nothing.
	maxIdleFrames = 10_000
	idlePeriod    = time.Minute

	// maxSettings bounds the settings in one frame; there are six of them.
	maxSettings = 100

	// longHeaders is the number of idle frames that one header block above MaxHeaderBytes counts as. References to the
	// table let a few bytes stand for that many.
	longHeaders = 100

	// maxStrikes is how many pings may come too soon.
	maxStrikes = 2

	// maxBlocked is how many bytes of answers a connection may hold for a client that does not open its windows. One
	// answer may be longer.
	maxBlocked = 256 << 10

	// holdStep is by how many bytes the memory that a connection holds must change before limits learns of it, which
	// takes a lock that all connections share. The few calls of a usual batch hold less.
	holdStep = 4 << 10

	// blockedOverhead is what an answer that waits takes besides its bytes.
	blockedOverhead = 512 // bytes

	// maxIdleStreams is how many streams the map of an idle connection may have room for.
	maxIdleStreams = 64

	// pingDelay is how long the answer to a ping waits for the answer to a call. Clients of grpc-go send a ping with most
	// calls, and each write costs them and this side a system call, and wakes them.
	pingDelay = time.Millisecond

	// maxStreamID is in a GOAWAY that still lets the client's requests in flight arrive.
	maxStreamID = 1<<31 - 1
)

// conn is a connection, as far as any goroutine may use it. The goroutine that reads it has a reader, and the one that
// checks all connections has a lifetime.
type conn struct {
	server *Server
	number int64    // of the connection
	plain  net.Conn // decrypted
	sock   *socket  // below the encryption
	limits *intake.Conn
	tls    *tls.ConnectionState

	read   atomic.Int64 // when the last frame was read, in nanoseconds after the server began
	wrote  atomic.Bool  // an answer, or a part of one, was written since the last ping of the client
	queued atomic.Bool  // a flusher will flush the connection

	flushing sync.Mutex // held while the output is written
	spare    []byte     // under flushing

	guarded
}

// guarded is what goroutines share, under the mutex.
type guarded struct {
	mu       sync.Mutex
	handling bool        // the reading goroutine will flush when the batch is handled
	out      []byte      // what is not written yet
	pongs    int         // bytes at the beginning of out that answer pings
	pongTime *time.Timer // flushes the connection if it is set
	pongWait bool        // it is set
	streams  map[uint32]*stream

	mostStreams int // since streams was made

	ready          bool           // the handshake is over
	mustLeave      bool           // the client must be asked to leave when the handshake is over
	open           uint32         // requests that are not answered, whether the client has reset them or not
	progress       bool           // something was answered since idle last asked
	latest         uint32         // the highest stream that the client has opened
	finished       recentlyClosed // the client ended or reset them
	rejected       recentlyClosed // this side ended them while the client had more to send
	window         int64          // bytes of DATA that may be sent
	initial        int64          // the window of a new stream
	frame          int            // the largest frame that the client accepts
	resizes        bool           // the next header block must say that the encoder's table is empty
	blockedAnswers []blockedAnswer
	blockedBytes   int
	blockedStreams int       // streams that wait for a window to send
	held           int64     // bytes that are held for the client: messages, header fields, answers
	reported       int64     // how many of them limits knows of
	stuckSince     time.Time // when an answer last made progress while one waits for a window; zero: none waits
	unread         bool      // the client does not read its answers, and loses the connection
	leaving        bool      // GOAWAY was sent
	left           bool      // leave was called
	lastServed     uint32    // streams after this one are not served; with leaving
	isClosed       bool
}

// reader is the side of a connection that its own goroutine reads. Nothing else can reach these fields.
type reader struct {
	*conn

	buf        *bufio.Reader
	framer     *http2.Framer
	large      bool // the framer has read a frame that is longer than the buffer
	headers    headerReader
	batch      []*Call
	received   int64 // bytes of DATA that the client has sent and has no credit for yet
	lastPing   time.Time
	strikes    int
	idleFrames int
	idleSince  time.Time // when the first of the idle frames came
	settled    bool      // the client has sent its settings
	now        time.Time // when the first request of this read arrived; zero: there is none

	decodesLarge bool // it is one of the connections that may decode large messages; see decodeLarge
}

// serve serves a connection until it ends.
func (s *Server) serve(raw net.Conn) {
	kernel := raw
	limits, _ := raw.(*intake.Conn)
	if limits != nil {
		kernel = limits.Conn
	}
	c := &conn{
		server: s, number: s.numbers.Add(1), limits: limits, sock: newSocket(raw, kernel),
		guarded: guarded{streams: make(map[uint32]*stream), window: initialWindow, initial: initialWindow, frame: maxFrame},
	}
	c.plain = c.sock
	c.sock.moved = c.countMore
	if !s.add(c) {
		_ = raw.Close()
		return
	}
	// not in close: a handler may still be given the last batch when another goroutine closes the connection
	defer s.remove(c)
	defer c.close()
	r := &reader{conn: c}
	if err := r.handshake(); err != nil {
		s.opts.Log.Debug("connection closed before its first request", "peer", raw.RemoteAddr().String(), "error", err)
		return
	}
	r.serve()
}

// serve reads frames until the connection ends.
func (c *reader) serve() {
	for {
		if !c.hasFrame() {
			c.handle()
			c.now = time.Time{} // what the next read delivers arrives later
			c.flushRead()
			c.sock.await(maxUnsent)
			if c.large {
				c.renewFramer()
			}
		}
		err := c.readFrame()
		if c.limits != nil && c.limits.IsCut() {
			err = net.ErrClosed
		}
		if err == nil {
			continue
		}
		if e, ok := errors.AsType[http2.StreamError](err); ok {
			c.reset(e.StreamID, e.Code)
			if c.idle() {
				continue
			}
			err = c.overBound(intake.TooManyFrames)
		}
		c.handle()
		c.dropUnfinished()
		c.end(err)
		return
	}
}

// hasFrame reports whether a whole frame has been read from the socket. The CONTINUATION frames of a header block may
// arrive later, so its first frame does not count.
func (c *reader) hasFrame() bool {
	n := c.buf.Buffered()
	if n < frameHeader {
		return false
	}
	head, err := c.buf.Peek(frameHeader)
	if err != nil || n < frameHeader+(int(head[0])<<16|int(head[1])<<8|int(head[2])) {
		return false
	}
	return http2.FrameType(head[3]) != http2.FrameHeaders || http2.Flags(head[4]).Has(http2.FlagHeadersEndHeaders)
}

// handle passes on the calls that have arrived together.
func (c *reader) handle() {
	defer c.decoded()
	if len(c.batch) == 0 {
		c.now = time.Time{} // the next call may come much later
		return
	}
	if c.now.IsZero() {
		c.now = time.Now()
	}
	c.read.Store(int64(c.now.Sub(c.server.began)))
	c.idleFrames = 0
	for _, call := range c.batch {
		call.arrived(c.now)
	}
	c.setHandling(true)
	c.server.opts.Handler.Handle(c.now, c.batch)
	c.setHandling(false)
	clear(c.batch)
	c.batch = c.batch[:0]
}

func (c *conn) setHandling(on bool) {
	c.mu.Lock()
	c.handling = on
	c.mu.Unlock()
}

// end ends a connection on which reading failed.
func (c *conn) end(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || isNetError(err) {
		return
	}
	c.server.opts.Log.Debug("connection closed", "peer", c.sock.RemoteAddr().String(), "error", err)
	c.goAway(goAwayFor(err))
	c.flush()
	c.closeTLS()
	_ = c.sock.SetWriteDeadline(time.Now().Add(time.Second))
	c.sock.flushed()
	c.linger()
}

// dropUnfinished ends calls whose message does not arrive any more, so that they count as in flight no longer. The
// connection may stay open for a moment. The caller is the goroutine that reads.
func (c *conn) dropUnfinished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		if st.call != nil && !st.ended {
			c.abort(st)
			st.call.freeParts()
		}
	}
}

func isNetError(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok
}

// close closes the connection. Its requests end.
func (c *conn) close() {
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return
	}
	c.isClosed = true
	all := c.streams
	c.streams = nil // delete works on it, and nothing is added any more
	for _, o := range c.blockedAnswers {
		c.unblock(o)
	}
	c.blockedAnswers, c.out = nil, nil
	for _, st := range all {
		c.abort(st)
	}
	c.count(0)
	plain := c.plain
	c.mu.Unlock()
	_ = c.sock.Close()
	if plain != net.Conn(c.sock) {
		go func() { _ = plain.Close() }() // sends an alert, and may wait for that
	}
}

// idle counts a frame that belongs to no request. It returns false if there are too many.
func (c *reader) idle() bool {
	if c.idleFrames == 0 {
		c.idleSince = time.Now()
	}
	if c.idleFrames++; c.idleFrames <= maxIdleFrames {
		return true
	}
	c.mu.Lock()
	fine := c.progress
	c.progress = false
	c.mu.Unlock()
	fine = fine || time.Since(c.idleSince) > idlePeriod
	if fine {
		c.idleFrames = 0
	}
	return fine
}

// flush writes the output. It does not block.
func (c *conn) flush() {
	c.flushing.Lock()
	defer c.flushing.Unlock()
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return
	}
	p := c.out
	c.out = c.spare[:0]
	c.spare = nil
	c.pongs = 0
	if c.pongWait {
		c.pongWait = false
		c.pongTime.Stop()
	}
	leave := c.leaving && !c.left && len(c.streams) == 0 && c.lastServed != maxStreamID && c.open == 0
	left := c.left // this side of the connection is closed, or soon will be
	c.left = c.left || leave
	c.mu.Unlock()
	if len(p) > 0 && !left {
		if _, err := c.plain.Write(p); err != nil {
			c.server.opts.Log.Debug("connection closed", "peer", c.sock.RemoteAddr().String(), "error", err)
			go c.close()
		}
	}
	if cap(p) <= maxKeptOutput {
		c.spare = p[:0]
	}
	if leave {
		go c.leave()
	}
}

// flushRead writes the output after a read. If that is nothing but answers to pings, they wait for the answer to a call
// in flight.
func (c *conn) flushRead() {
	c.mu.Lock()
	waits := c.pongs > 0 && c.pongs == len(c.out) && c.open > 0 && !c.leaving
	if waits && !c.pongWait { // more pings do not make the first one wait longer
		c.pongWait = true
		if c.pongTime == nil {
			c.pongTime = time.AfterFunc(pingDelay, c.flush)
		} else {
			c.pongTime.Reset(pingDelay)
		}
	}
	c.mu.Unlock()
	if !waits {
		c.flush()
	}
}

// pong answers a ping.
func (c *conn) pong(data [8]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	alone := len(c.out) == c.pongs
	c.out = appendPing(c.out, true, data)
	if alone {
		c.pongs = len(c.out)
	}
}

// flushLater lets a flusher write the output, together with answers that are about to be given.
func (c *conn) flushLater() {
	if c.queued.Swap(true) {
		return
	}
	flushers := c.server.flushers
	select {
	case flushers[c.number%int64(len(flushers))] <- c:
	default: // the flusher is busy
		c.queued.Store(false)
		c.flush()
	}
}

// count counts bytes that are held for the client. A connection that holds too many is closed. The caller holds the
// lock.
func (c *conn) count(n int64) {
	c.held += n
	change := c.held - c.reported
	if c.limits != nil && change != 0 && (change >= holdStep || change <= -holdStep || c.isClosed) {
		c.reported = c.held
		c.limits.Hold(change)
	}
}

// countMore is count for callers that do not hold the lock.
func (c *conn) countMore(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(n)
}

const hpackTable = 4096 // bytes; of RFC 7541
