package transport

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/intake"
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

	// longHeaders is as how many idle frames a header block counts that is longer than MaxHeaderBytes. With references to the
	// table, a few bytes can stand for that many.
	longHeaders = 100

	// maxStrikes is how many pings may come too soon.
	maxStrikes = 2

	// maxOwed is how many bytes of answers a connection may hold for a client that does not open its windows. One answer may
	// be longer.
	maxOwed = 256 << 10

	// holdStep is how much what a connection holds must change before limits learns of it, under a lock of all connections.
	// The few calls of a usual batch are less.
	holdStep = 4 << 10

	// owedOverhead is what an answer that waits takes besides its bytes.
	owedOverhead = 512

	// keepStreams is how many streams the map of an idle connection may have room for.
	keepStreams = 64

	// maxStreamID is in a GOAWAY that still lets the client's requests in flight arrive.
	maxStreamID = 1<<31 - 1
)

// drainPing is the content of the ping after the first GOAWAY. Its answer shows that the client has seen the GOAWAY.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}

// drainTimeout is how long a client that is asked to leave may take to answer a ping.
const drainTimeout = 5 * time.Second

// leaveTimeout is how long a client may take to close a connection after its last answer.
const leaveTimeout = time.Second

const notHTTP2 = "This port speaks gRPC over HTTP/2. This request is not HTTP/2.\n"

const answerToHTTP1 = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" + notHTTP2

var errPreface = errors.New("the client does not speak HTTP/2")

// conn is a connection.
type conn struct {
	server *Server
	number int64    // of the connection
	plain  net.Conn // decrypted
	sock   *socket  // below the encryption
	limits *intake.Conn
	tls    *tls.ConnectionState
	ctx    context.Context // of requests for Other
	cancel context.CancelFunc

	// The goroutine that reads the connection owns these fields.
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

	read   atomic.Int64 // when the last frame was read, in nanoseconds of the wall clock
	wrote  atomic.Bool  // an answer was written since the last ping of the client
	queued atomic.Bool  // a flusher will flush the connection

	keeping keeping // owned by the server's goroutine that keeps connections

	flushing sync.Mutex // held while the output is written
	spare    []byte     // under flushing

	mu       sync.Mutex
	handling bool   // the reading goroutine will flush when the batch is handled
	out      []byte // what is not written yet
	streams  map[uint32]*stream

	mostStreams int // since streams was made

	ready      bool           // the handshake is over
	mustLeave  bool           // the client must be asked to leave when the handshake is over
	open       uint32         // requests that are not answered, whether the client has reset them or not
	progress   bool           // something was answered since idle last asked
	latest     uint32         // the highest stream that the client has opened
	finished   recentlyClosed // the client ended or reset them
	refused    recentlyClosed // this side ended them while the client had more to send
	window     int64          // bytes of DATA that may be sent
	initial    int64          // the window of a new stream
	frame      int            // the largest frame that the client accepts
	resizes    bool           // the next header block must say that the encoder's table is empty
	owed       []owed
	owedBytes  int
	blocked    int       // handlers of other requests that wait for a window
	held       int64     // bytes that are held for the client: messages, header fields, answers
	reported   int64     // how many of them limits knows of
	stuckSince time.Time // when an answer last made progress while one waits for a window; zero: none waits
	unread     bool      // the client does not read its answers, and loses the connection
	leaving    bool      // GOAWAY was sent
	left       bool      // leave was called
	lastServed uint32    // streams after this one are not served; with leaving
	isClosed   bool
}

// stream is one request.
type stream struct {
	conn *conn
	id   uint32

	// The goroutine that reads the connection owns these fields.
	declared int64 // content-length; -1: none
	body     int64 // bytes of DATA that arrived

	// Under the connection's mutex.
	ended    bool  // the client has sent its last frame
	received int64 // bytes that the client has sent and has no credit for yet
	window   int64 // bytes that may be sent
	waiting  bool  // a part of the answer waits for the window
	gone     bool  // the stream is closed
	held     int64 // bytes of its message and its header fields that are held

	call     *Call     // of the method
	exchange *exchange // any other request
}

// recentlyClosed has the last streams that were closed in some way.
type recentlyClosed struct {
	ids  [64]uint32
	next int
}

func (r *recentlyClosed) add(id uint32) {
	r.ids[r.next%len(r.ids)] = id
	r.next++
}

func (r *recentlyClosed) has(id uint32) bool {
	for _, closed := range r.ids {
		if closed == id {
			return true
		}
	}
	return false
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
		streams: make(map[uint32]*stream), window: initialWindow, initial: initialWindow, frame: maxFrame,
	}
	c.plain = c.sock
	c.sock.moved = c.countMore
	c.ctx, c.cancel = context.Background(), func() {}
	if !s.add(c) {
		_ = raw.Close()
		return
	}
	defer c.close()
	if err := c.handshake(); err != nil {
		s.opts.Log.Debug("connection closed before its first request", "peer", raw.RemoteAddr().String(), "error", err)
		return
	}
	c.serve()
}

// handshake returns when the client has shown that it speaks HTTP/2.
func (c *conn) handshake() error {
	opts := &c.server.opts
	_ = c.sock.SetReadDeadline(time.Now().Add(opts.HandshakeTimeout))
	if opts.Handshake != nil {
		plain, state, err := opts.Handshake(c.sock)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.plain, c.tls = plain, state
		c.mu.Unlock()
	}
	c.buf = bufio.NewReaderSize(c.plain, readBuffer)
	if err := c.preface(); err != nil {
		return err
	}
	_ = c.sock.SetReadDeadline(time.Time{})
	ctx := context.WithValue(context.Background(), localAddrKey, c.sock.LocalAddr())
	c.renewFramer()
	c.headers.init(opts.Path, opts.MaxHeaderBytes)
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.out = appendServerPreface(c.out, opts.MaxStreams, opts.MaxHeaderBytes)
	c.ready = true
	mustLeave := c.mustLeave
	c.mu.Unlock()
	c.flush()
	if mustLeave {
		c.drain()
	}
	return nil
}

// renewFramer makes a framer. The framer keeps memory for the longest frame that it has read.
func (c *conn) renewFramer() {
	c.framer = http2.NewFramer(nil, c.buf)
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.large = false
}

func (c *conn) preface() error {
	for n := 1; n <= len(http2.ClientPreface); n++ {
		got, err := c.buf.Peek(n)
		if err != nil {
			return err
		}
		if got[n-1] != http2.ClientPreface[n-1] {
			c.answerHTTP1()
			return errPreface
		}
	}
	_, err := c.buf.Discard(len(http2.ClientPreface))
	return err
}

// answerHTTP1 gives an HTTP/1 client an answer that it understands.
func (c *conn) answerHTTP1() {
	seen, _ := c.buf.Peek(c.buf.Buffered())
	for _, method := range []string{"GET ", "HEAD ", "POST ", "PUT ", "PATCH ", "DELETE ", "OPTIONS "} {
		if bytes.HasPrefix(seen, []byte(method)) {
			_, _ = c.plain.Write([]byte(answerToHTTP1))
			c.sock.flushed()
			c.linger()
			return
		}
	}
}

// linger reads what the client has sent already. The kernel would reset a connection that is closed with unread bytes, and
// the client would not see the last answer.
func (c *conn) linger() {
	c.sock.closeWrite()
	_ = c.sock.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = io.CopyN(io.Discard, c.sock.Conn, 64<<10)
}

// serve reads frames until the connection ends.
func (c *conn) serve() {
	for {
		if !c.hasFrame() {
			c.handle()
			c.now = time.Time{} // what the next read delivers arrives later
			c.flush()
			c.sock.await(maxUnsent)
			if c.large {
				c.headers.letGo()
				c.renewFramer()
			}
		}
		err := c.readFrame()
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

// hasFrame reports whether a whole frame has been read from the socket. The CONTINUATION frames of a header block may arrive
// later, so its first frame does not count.
func (c *conn) hasFrame() bool {
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
func (c *conn) handle() {
	if len(c.batch) == 0 {
		c.now = time.Time{} // the next call may come much later
		return
	}
	if c.now.IsZero() {
		c.now = time.Now()
	}
	c.read.Store(c.now.UnixNano())
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

// dropUnfinished ends calls whose message does not arrive any more, so that they count as in flight no longer. The connection
// may stay open for a moment. The caller is the goroutine that reads.
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
	c.owed, c.out = nil, nil
	for _, st := range all {
		c.abort(st)
	}
	plain, cancel := c.plain, c.cancel
	c.mu.Unlock()
	cancel()
	_ = c.sock.Close()
	if plain != net.Conn(c.sock) {
		go func() { _ = plain.Close() }() // sends an alert, and may wait for that
	}
	c.server.remove(c)
}

// idle counts a frame that belongs to no request. It returns false if there are too many.
func (c *conn) idle() bool {
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
	leave := c.leaving && !c.left && len(c.streams) == 0 && c.lastServed != maxStreamID && c.open == 0
	left := c.left // this side of the connection is closed, or soon will be
	c.left = c.left || leave
	c.mu.Unlock()
	if len(p) > 0 && !left {
		if _, err := c.plain.Write(p); err != nil {
			go c.close()
		}
	}
	if cap(p) <= keepOutput {
		c.spare = p[:0]
	}
	if leave {
		go c.leave()
	}
}

// leave ends a connection whose last answer is in the socket. The client is given time to read it and to close the
// connection: if a frame came after this side had closed it, the kernel would reset the connection, and throw away answers
// that the client has not read.
func (c *conn) leave() {
	c.closeTLS()
	c.sock.flushed()
	c.sock.closeWrite()
	time.AfterFunc(leaveTimeout, c.close)
}

// closeTLS tells the client of an encrypted connection that nothing follows. Without that it has to assume that somebody has cut
// the connection.
func (c *conn) closeTLS() {
	c.mu.Lock()
	plain := c.plain
	c.mu.Unlock()
	if encrypted, ok := plain.(*tls.Conn); ok {
		_ = encrypted.CloseWrite()
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

// keeping is the state of keepalive and age of a connection.
type keeping struct {
	began   time.Time // when the connection was first looked at
	age     time.Duration
	pinged  time.Time // zero: no ping is unanswered
	drained time.Time // when the client was asked to leave
}

// keep pings an idle client, and asks the client of an old connection to leave.
func (c *conn) keep(now time.Time) {
	c.mu.Lock()
	ready := c.ready
	if len(c.streams) == 0 && c.mostStreams > keepStreams && !c.isClosed { // a map does not shrink
		c.streams, c.mostStreams = make(map[uint32]*stream), 0
	}
	c.mu.Unlock()
	if !ready {
		return // the handshake has its own bound
	}
	o, k := &c.server.opts, &c.keeping
	if o.WriteTimeout > 0 && c.stuck(now) > o.WriteTimeout {
		_ = c.overBound(intake.NotReading)
		c.close()
		return
	}
	if k.began.IsZero() {
		k.began = now
		k.age = o.MaxConnectionAge
		if k.age > 0 && k.age < 1<<62 { // a longer time means never
			k.age += time.Duration((rand.Float64() - 0.5) / 5 * float64(k.age))
		}
	}
	switch {
	case k.age > 0 && k.drained.IsZero() && now.Sub(k.began) >= k.age:
		k.drained = now
		c.drain()
	case !k.drained.IsZero() && o.MaxAgeGrace != 0 && now.Sub(k.drained) >= o.MaxAgeGrace:
		c.close()
		return
	}
	if o.PingAfter <= 0 {
		return
	}
	quiet := now.Sub(time.Unix(0, max(c.read.Load(), k.began.UnixNano())))
	switch {
	case quiet < o.PingAfter:
		k.pinged = time.Time{}
	case k.pinged.IsZero():
		k.pinged = now
		c.mu.Lock()
		c.out = appendPing(c.out, false, [8]byte{})
		c.mu.Unlock()
		c.flush()
	case now.Sub(k.pinged) >= o.PingTimeout:
		_ = c.overBound(intake.PingNotAnswered)
		c.close()
	}
}

// stuck returns how long answers have waited for a window that the client does not open.
func (c *conn) stuck(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stuckSince.IsZero() {
		return 0
	}
	if len(c.owed) == 0 && c.blocked == 0 {
		c.stuckSince = time.Time{}
		return 0
	}
	return now.Sub(c.stuckSince)
}

// unstick is called when an answer that had to wait for a window made progress. The caller holds the lock.
func (c *conn) unstick() {
	if !c.stuckSince.IsZero() {
		c.stuckSince = time.Now()
	}
}

// drain asks the client to leave. Requests that are on their way are still served, until the client has answered a ping.
func (c *conn) drain() {
	c.mu.Lock()
	if c.leaving || c.isClosed {
		c.mu.Unlock()
		return
	}
	if !c.ready {
		c.mustLeave = true
		c.mu.Unlock()
		time.AfterFunc(drainTimeout, c.closeUnready) // not every client says something
		return
	}
	c.leaving, c.lastServed = true, maxStreamID
	c.out = appendGoAway(c.out, maxStreamID, http2.ErrCodeNo, nil)
	c.out = appendPing(c.out, false, drainPing)
	c.mu.Unlock()
	c.flush()
	time.AfterFunc(drainTimeout, func() { // not every client answers a ping
		c.drained()
		c.flush()
	})
}

// closeUnready closes the connection of a client that has said nothing.
func (c *conn) closeUnready() {
	c.mu.Lock()
	ready := c.ready
	c.mu.Unlock()
	if !ready {
		c.close()
	}
}

// drained is called when the client has seen that it must leave.
func (c *conn) drained() {
	c.mu.Lock()
	if c.leaving && c.lastServed == maxStreamID {
		c.lastServed = c.latest
		c.out = appendGoAway(c.out, c.latest, http2.ErrCodeNo, nil)
	}
	c.mu.Unlock()
}

// hold counts bytes that are held for a stream, or with a negative number that are not held any more. The caller holds the
// lock.
func (c *conn) hold(st *stream, n int64) {
	st.held += n
	c.count(n)
}

// count counts bytes that are held for the client. A connection that holds too many is closed. The caller holds the lock.
func (c *conn) count(n int64) {
	c.held += n
	if change := c.held - c.reported; c.limits != nil && (change >= holdStep || change <= -holdStep) {
		c.reported = c.held
		c.limits.Hold(change)
	}
}

// countMore is count for those who do not hold the lock.
func (c *conn) countMore(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(n)
}

// goAway ends the connection with an error code.
func (c *conn) goAway(code http2.ErrCode, debug []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving, c.lastServed = true, c.latest
	c.out = appendGoAway(c.out, c.latest, code, debug)
}

// reset ends a stream with an error code. The caller is the goroutine that reads.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.streams[id]; st != nil {
		c.abort(st)
		if st.call != nil && !st.ended {
			st.call.freeParts()
		}
	}
	c.out = appendReset(c.out, id, code)
}

// closed remembers how a stream was closed. Frames that the client has sent before it knows are ignored; frames after it has
// ended the stream are an error. The caller holds the lock.
func (c *conn) closed(id uint32, ended bool) {
	if ended {
		c.finished.add(id)
	} else {
		c.refused.add(id)
	}
}

// remove forgets a stream. The caller holds the lock.
func (c *conn) remove(st *stream) {
	if st.gone {
		return
	}
	st.gone = true
	delete(c.streams, st.id)
	c.closed(st.id, st.ended)
	if st.waiting {
		c.drop(st)
	}
	if st.exchange != nil {
		st.exchange.room.Signal()
	}
}

// abort ends the work for a stream that the client will get no answer for. The caller holds the lock.
func (c *conn) abort(st *stream) {
	c.remove(st)
	if st.exchange != nil {
		st.exchange.cancel()
		st.exchange.body.fail(errReset)
		return
	}
	st.call.abandoned()
	if st.ended {
		return // the handler has the call, and answers it
	}
	c.open--
	c.hold(st, -st.held)
	if st.call.counted {
		st.call.counted = false
		c.server.opts.Calls.End(st.call.inFlight, 0)
	}
}

const hpackTable = 4096 // bytes; of RFC 7541
