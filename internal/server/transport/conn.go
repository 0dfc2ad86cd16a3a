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

	// maxUnsent is the number of unsent bytes of answers above which nothing more is read from the client.
	maxUnsent = 256 << 10

	// receiveWindow is how many bytes a client may send ahead, on a stream and on the whole connection. Credit is returned
	// when creditAfter bytes have been used.
	receiveWindow = 1 << 20
	creditAfter   = receiveWindow / 4

	initialWindow = 65_535 // default of RFC 9113, in both directions
	maxWindow     = 1<<31 - 1

	// maxFrame is the largest accepted frame: the smallest bound that HTTP/2 allows.
	maxFrame = 16 << 10

	// maxIdleFrames is how many frames outside of requests a client may send between two answers and within idlePeriod.
	// Without the bound, a client could keep the server busy with frames that cost the client nothing.
	maxIdleFrames = 10_000
	idlePeriod    = time.Minute

	// maxSettings bounds the settings in one frame; HTTP/2 defines six.
	maxSettings = 100

	// longHeaders is the number of idle frames that a header block above MaxHeaderBytes counts as. With references to the
	// table, a few bytes can stand for that many.
	longHeaders = 100

	// maxStrikes is the number of tolerated pings that arrive too early.
	maxStrikes = 2

	// maxBlocked is the largest total of answers, in bytes, that wait for a client to open its windows. A single answer
	// may be larger.
	maxBlocked = 256 << 10

	// holdStep is the change of a connection's memory, in bytes, that is worth reporting to limits, which locks a mutex
	// shared by all connections. The few calls of a usual batch use less.
	holdStep = 4 << 10

	// blockedOverhead is the memory of a waiting answer in addition to its bytes.
	blockedOverhead = 512 // bytes

	// maxIdleStreams is the largest capacity of the map of streams on an idle connection.
	maxIdleStreams = 64

	// pingDelay is how long the answer to a ping may wait for the answer to a call. Clients of grpc-go send a ping with
	// most calls, and each separate write costs both sides a system call, and wakes the client.
	pingDelay = time.Millisecond

	// maxStreamID in a GOAWAY still accepts the client's pending requests.
	maxStreamID = 1<<31 - 1
)

// conn is the part of a connection that any goroutine may use. The goroutine that reads it has a reader, and the one
// that checks all connections has a lifetime.
type conn struct {
	server *Server
	number int64    // connection number, to pick a flusher
	plain  net.Conn // decrypted connection
	sock   *socket  // connection below the encryption
	limits *intake.Conn
	tls    *tls.ConnectionState

	read   atomic.Int64 // when the last frame was read, in nanoseconds after the server's start
	wrote  atomic.Bool  // an answer, or part of one, was written since the client's last ping
	queued atomic.Bool  // a flusher will flush the connection

	flushing sync.Mutex // held while the output is written
	spare    []byte     // reusable buffer, guarded by flushing

	guarded
}

// guarded is shared by several goroutines, and guarded by mu.
type guarded struct {
	mu       sync.Mutex
	handling bool        // the reading goroutine is handling a batch, and flushes afterwards
	out      []byte      // output that is not written yet
	pongs    int         // bytes at the start of out that answer pings
	pongTime *time.Timer // flushes the connection when pongWait is set
	pongWait bool        // pongTime is running
	streams  map[uint32]*stream

	mostStreams int // largest size of streams since the map was created

	ready          bool           // the handshake is complete
	mustLeave      bool           // the client must be asked to leave after the handshake
	open           uint32         // requests without an answer, including those that the client has reset
	progress       bool           // an answer was sent since the last check in idle
	latest         uint32         // highest stream that the client has opened
	finished       recentlyClosed // streams that the client has ended or reset
	rejected       recentlyClosed // streams that this side ended before the client did
	window         int64          // bytes of DATA that may be sent
	initial        int64          // window of a new stream
	frame          int            // largest frame that the client accepts
	resizes        bool           // the next header block must announce that the encoder's table is empty
	blockedAnswers []blockedAnswer
	blockedBytes   int
	blockedStreams int       // streams that wait for a window to send
	held           int64     // memory for the client in bytes: messages, header fields, answers
	reported       int64     // the part of held that was reported to limits
	stuckSince     time.Time // when an answer that waits for a window last made progress; zero if none waits
	unread         bool      // the client does not read its answers, and will be disconnected
	leaving        bool      // GOAWAY was sent
	left           bool      // leave was called
	lastServed     uint32    // last served stream, if leaving is set
	isClosed       bool
}

// reader is the part of a connection that only its reading goroutine uses.
type reader struct {
	*conn

	buf        *bufio.Reader
	framer     *http2.Framer
	large      bool // the framer has read a frame larger than the buffer
	headers    headerReader
	batch      []*Call
	received   int64 // received bytes of DATA without credit
	lastPing   time.Time
	strikes    int
	idleFrames int
	idleSince  time.Time // when the first of the idle frames arrived
	settled    bool      // the client has sent its settings
	now        time.Time // arrival of the first request in this read; zero if there is none

	decodesLarge bool // the connection has a place in Server.large, see decodeLarge
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
	// not in close: while another goroutine closes the connection, the handler may still receive the last batch
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
			c.now = time.Time{} // data of the next read arrives later
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

// hasFrame reports whether a whole frame was read from the socket. The first frame of a header block does not count if
// CONTINUATION frames follow, because they may arrive later.
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

// handle passes the batch of calls to the handler.
func (c *reader) handle() {
	defer c.decoded()
	if len(c.batch) == 0 {
		c.now = time.Time{} // the next call may arrive much later
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

// end ends a connection after a read has failed.
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

// dropUnfinished ends calls with an incomplete message, so that they no longer count as in flight. The connection may
// stay open for a moment. Only the reading goroutine calls it.
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

// close closes the connection, and ends its requests.
func (c *conn) close() {
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return
	}
	c.isClosed = true
	all := c.streams
	c.streams = nil // delete works on nil, and nothing is added any more
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
		go func() { _ = plain.Close() }() // sends an alert, and may block
	}
}

// idle counts a frame outside of requests. It returns false if there are too many.
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

// flush writes the output, without blocking.
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
	left := c.left // this side of the connection is closed, or will be soon
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

// flushRead writes the output after a read. If it contains only answers to pings, they wait for the answer to a call in
// flight.
func (c *conn) flushRead() {
	c.mu.Lock()
	waits := c.pongs > 0 && c.pongs == len(c.out) && c.open > 0 && !c.leaving
	if waits && !c.pongWait { // more pings do not prolong the wait of the first
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

// flushLater lets a flusher write the output, together with answers that are about to follow.
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

// count counts memory for the client. If it is too much, the connection is closed. The lock must be held.
func (c *conn) count(n int64) {
	c.held += n
	change := c.held - c.reported
	if c.limits != nil && change != 0 && (change >= holdStep || change <= -holdStep || c.isClosed) {
		c.reported = c.held
		c.limits.Hold(change)
	}
}

// countMore is count without the lock held.
func (c *conn) countMore(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(n)
}

const hpackTable = 4096 // bytes, as in RFC 7541
