package transport

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// StreamMethod is a method outside of Handler. Each call of it has a separate goroutine, and any number of messages in
// both directions.
type StreamMethod struct {
	// Serve answers a call. Its error is the status of the call; nil is OK. The stream must not be used after it has
	// returned.
	Serve func(*Stream) error

	// MaxMessageBytes bounds a message of the client, also decompressed. The default is Options.MaxMessageBytes.
	MaxMessageBytes int

	// Admit is for calls that may stay open for days. It is called before any memory is used for a call, and returns the
	// function to call at its end, or the reason of a rejection. Such a call does not count as a call in flight. With a
	// nil Admit, the call counts.
	Admit func(*intake.Conn) (end func(), rejection string)
}

// streamSize is the memory of a stream without its messages, in bytes: two stacks, and the state to send and to
// receive.
const streamSize = 16 << 10

const noRoom = "too much is kept for clients"

// Messages of at least minCompressed bytes are compressed if the client compresses its messages.
const minCompressed = 1 << 10

var (
	errReset      = status.Error(codes.Canceled, context.Canceled.Error())
	errUnexpected = status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
)

// Stream is a call of a StreamMethod. One goroutine at a time may receive, and another one may send. Interrupt may be
// called at any time.
type Stream struct {
	stream   stream
	method   *StreamMethod
	path     string
	encoding string // encoding of the client's messages
	ctx      context.Context
	cancel   context.CancelFunc
	admitted func()          // end function from Admit; nil if the call counts as in flight
	inFlight intake.InFlight // guarded by the connection's mutex

	buf []byte // memory of short messages; owned by the goroutine that receives

	// Guarded by the connection's mutex.
	// signals that the awaited bytes have arrived, or that the stream is over; uses the connection's mutex
	arrived    sync.Cond
	room       sync.Cond // signals that the windows have room, or that the stream is over; uses the connection's mutex
	failed     error     // error of Recv and Send from now on
	chunks     []chunk   // arrived data that was not received yet
	pending    int       // bytes in chunks
	wanted     int       // bytes that Recv waits for
	credited   int       // the part of wanted for which the client has credit
	uncredited int64     // received bytes without credit
	kept       int64     // memory of the last received message, in bytes
	began      bool      // the header was sent
	broken     bool      // a message was sent partly
}

// chunk is a part of the arrived data. Each is as large as those before it together, up to maxChunk, so that the chunks
// are little larger than their contents. A growing buffer would leave garbage behind.
type chunk struct {
	data []byte
	read int // received bytes of data
}

const minChunk, maxChunk = 256, 16 << 10

// beginStream starts a call of a StreamMethod.
func (c *reader) beginStream(id uint32, h *head, ended bool) error {
	m, calls := h.known.stream, c.server.opts.Calls
	if c.limits != nil && !c.limits.HasRoom(streamSize) {
		calls.NoRoom()
		return c.reject(id, ended, codes.ResourceExhausted, noRoom, "")
	}
	if !known(h.encoding) {
		return c.reject(id, ended, codes.Unimplemented, unknownEncoding(h.encoding), acceptedEncodings)
	}
	s := &Stream{
		stream: stream{conn: c.conn, id: id, declared: h.declared, ended: ended},
		method: m, path: h.known.path, encoding: h.encoding,
	}
	if m.Admit != nil {
		end, rejection := m.Admit(c.limits)
		if rejection != "" {
			return c.reject(id, ended, codes.ResourceExhausted, rejection, "")
		}
		s.admitted = end
	} else {
		inFlight, ok := calls.Begin(c.limits)
		if !ok {
			return c.reject(id, ended, codes.ResourceExhausted, tooManyCalls, "")
		}
		s.inFlight = inFlight
	}
	s.stream.long = s
	s.arrived.L, s.room.L = &c.mu, &c.mu
	if h.timed {
		s.ctx, s.cancel = context.WithDeadline(context.Background(), c.now.Add(h.timeout))
	} else {
		s.ctx, s.cancel = context.WithCancel(context.Background())
	}
	c.add(&s.stream, streamSize)
	go s.run(h.timed)
	return nil
}

// run runs the method.
func (s *Stream) run(timed bool) {
	if timed {
		stop := context.AfterFunc(s.ctx, func() {
			s.Interrupt(status.FromContextError(s.ctx.Err()).Err())
		})
		defer stop()
	}
	s.end(s.serve())
}

// serve returns the error of the method. A panic becomes an error.
func (s *Stream) serve() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.stream.conn.server.opts.Panicked(p, s.path)
		}
	}()
	if err := s.ctx.Err(); err != nil {
		return err // ended while it waited to run
	}
	return s.method.Serve(s)
}

// end sends the status, and frees the stream's memory.
func (s *Stream) end(err error) {
	st, _ := status.FromError(err)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		st = status.FromContextError(err)
	}
	c := s.stream.conn
	s.cancel()
	if s.admitted != nil {
		s.admitted()
	}
	c.mu.Lock()
	switch {
	case s.stream.gone:
	case s.broken: // a status would look like the rest of the message
		c.out = appendReset(c.out, s.stream.id, http2.ErrCodeInternal)
		c.remove(&s.stream)
	default:
		c.appendStatus(s.stream.id, s.began, st.Code(), st.Message(), "")
		c.answered(&s.stream)
	}
	s.fail(errReset)
	s.drop()
	// Before the lock is released: a client with its answer may start the next call immediately.
	c.open--
	c.hold(&s.stream, -s.stream.held)
	if s.admitted == nil {
		c.server.opts.Calls.End(s.inFlight)
	}
	c.mu.Unlock()
	c.wrote.Store(true)
	c.flushLater()
}

// Context ends when the client gives up, when its deadline passes, or when the connection is closed.
func (s *Stream) Context() context.Context { return s.ctx }

// Conn returns the connection, or nil if its listener has no bounds.
func (s *Stream) Conn() *intake.Conn { return s.stream.conn.limits }

// RemoteAddr returns the address of the client.
func (s *Stream) RemoteAddr() net.Addr { return s.stream.conn.sock.RemoteAddr() }

// TLS returns the state of an encrypted connection, otherwise nil.
func (s *Stream) TLS() *tls.ConnectionState { return s.stream.conn.tls }

// Interrupt lets Recv and Send fail with an error from now on, even if they are waiting.
func (s *Stream) Interrupt(err error) {
	s.stream.conn.mu.Lock()
	defer s.stream.conn.mu.Unlock()
	s.fail(err)
}

// fail lets Recv and Send fail. The lock must be held.
func (s *Stream) fail(err error) {
	if s.failed == nil {
		s.failed = err
	}
	s.arrived.Signal()
	s.room.Signal()
}

// Recv returns the next message of the client. Its memory is valid until the next call of Recv. The error is io.EOF
// after the last message; any other error is a status.
func (s *Stream) Recv() ([]byte, error) {
	c := s.stream.conn
	c.mu.Lock()
	c.hold(&s.stream, -s.kept)
	s.kept = 0
	var prefix [prefixSize]byte
	err := s.await(prefixSize)
	if err == nil {
		s.take(prefix[:])
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	size, most := binary.BigEndian.Uint32(prefix[1:]), s.bound()
	switch {
	case int64(size) > int64(most):
		return nil, status.Error(codes.ResourceExhausted, tooLarge(size, most))
	case prefix[0] > 1:
		return nil, status.Error(codes.Internal, unknownFormat(prefix[0]))
	case prefix[0] == 1 && s.encoding != gzipEncoding:
		return nil, status.Error(codes.Internal, notCompressed)
	}
	message, err := s.receive(int(size), prefix[0] == 1 || size > largeMessage)
	if err == nil && prefix[0] == 1 {
		message, err = s.unzip(message)
	}
	return message, err
}

func (s *Stream) bound() int {
	if s.method.MaxMessageBytes > 0 {
		return s.method.MaxMessageBytes
	}
	return s.stream.conn.server.opts.MaxMessageBytes
}

// receive returns a message of this size. Streams and connections take turns with large ones, because these briefly
// need twice their memory.
func (s *Stream) receive(size int, large bool) ([]byte, error) {
	c := s.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	err := s.await(size)
	if errors.Is(err, io.EOF) {
		err = errUnexpected
	}
	if err != nil {
		return nil, err
	}
	if s.admitted == nil {
		c.server.opts.Calls.Arrived(&s.inFlight, time.Now())
	}
	if large {
		c.mu.Unlock()
		c.server.large <- struct{}{}
		defer func() { <-c.server.large }()
		if c.mu.Lock(); s.failed != nil { // the arrived data was freed while waiting
			return nil, s.failed
		}
	}
	if size > cap(s.buf) {
		s.buf = make([]byte, size)
	}
	message := s.buf[:size]
	s.take(message)
	if cap(s.buf) > maxKeptMessage {
		s.buf = nil
		s.keep(cap(message))
	}
	return message, nil
}

// keep counts the memory of the last received message. The lock must be held.
func (s *Stream) keep(size int) {
	s.stream.conn.hold(&s.stream, int64(size)-s.kept)
	s.kept = int64(size)
}

// unzip decompresses a message.
func (s *Stream) unzip(packed []byte) ([]byte, error) {
	c := s.stream.conn
	c.server.large <- struct{}{}
	defer func() { <-c.server.large }()
	message, code, text := Unzip(packed, s.bound())
	if code != codes.OK {
		return nil, status.Error(code, text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.keep(cap(message))
	return message, nil
}

// await waits until size bytes have arrived. The error is io.EOF if the client has ended its side and no byte remains.
// The lock must be held.
func (s *Stream) await(size int) error {
	c := s.stream.conn
	s.wanted, s.credited = size, 0
	for s.failed == nil && s.pending < size && !s.stream.ended {
		if s.credit() {
			c.mu.Unlock()
			c.flush()
			c.mu.Lock()
			continue
		}
		s.arrived.Wait()
	}
	switch {
	case s.failed != nil:
		return s.failed
	case s.pending >= size:
		return nil
	case s.pending == 0:
		return io.EOF
	}
	return errUnexpected
}

// take copies the next bytes, which must have arrived, and frees their chunks. The lock must be held.
func (s *Stream) take(into []byte) {
	freed := 0
	s.pending -= len(into)
	s.uncredited += int64(len(into) - s.credited)
	s.wanted, s.credited = 0, 0
	for len(into) > 0 {
		first := &s.chunks[0]
		n := copy(into, first.data[first.read:])
		into, first.read = into[n:], first.read+n
		if first.read == len(first.data) {
			freed += cap(first.data)
			*first = chunk{}
			s.chunks = s.chunks[1:]
		}
	}
	if len(s.chunks) == 0 {
		s.chunks = nil
	}
	s.stream.conn.hold(&s.stream, -int64(freed))
}

// credit returns credit to the client for received bytes, and for arrived bytes of the awaited message, if there are
// enough of them for a frame. The lock must be held.
func (s *Stream) credit() bool {
	arrived := min(s.pending, s.wanted)
	n := s.uncredited + int64(arrived-s.credited)
	if n < creditAfter || s.stream.ended || s.stream.gone {
		return false
	}
	s.uncredited, s.credited = 0, arrived
	s.stream.received -= n
	s.stream.conn.out = appendCredit(s.stream.conn.out, s.stream.id, n)
	return true
}

// arrive adds arrived data. The lock must be held.
func (s *Stream) arrive(p []byte) {
	if s.failed != nil {
		return // Recv fails from now on
	}
	s.pending += len(p)
	taken := 0
	for len(p) > 0 {
		size := 0
		if n := len(s.chunks); n > 0 {
			last := &s.chunks[n-1]
			part := p[:min(len(p), cap(last.data)-len(last.data))]
			last.data, p = append(last.data, part...), p[len(part):]
			size = 2 * cap(last.data)
		}
		if len(p) > 0 {
			size = min(max(size, len(p), minChunk), maxChunk)
			s.chunks = append(s.chunks, chunk{data: make([]byte, 0, size)})
			taken += size
		}
	}
	s.stream.conn.hold(&s.stream, int64(taken))
	s.credit()
	if s.pending >= s.wanted || s.stream.ended {
		s.arrived.Signal()
	}
}

// drop frees arrived data that will not be received. The lock must be held.
func (s *Stream) drop() {
	freed := 0
	for _, part := range s.chunks {
		freed += cap(part.data)
	}
	s.chunks, s.pending = nil, 0
	s.stream.conn.hold(&s.stream, -int64(freed))
}

// Send sends a message. It waits while the client's windows are closed, or while the client does not read.
func (s *Stream) Send(message []byte) error {
	c := s.stream.conn
	framed := make([]byte, prefixSize, prefixSize+len(message))
	if s.encoding == gzipEncoding && len(message) >= minCompressed {
		framed[0] = 1
		framed = c.server.appendZipped(framed, message)
	} else {
		framed = append(framed, message...)
	}
	binary.BigEndian.PutUint32(framed[1:], uint32(len(framed)-prefixSize))
	c.countMore(int64(cap(framed))) // it may wait for a long time
	defer c.countMore(-int64(cap(framed)))
	for rest := framed; len(rest) > 0; {
		c.sock.await(maxUnsent)
		c.mu.Lock()
		for s.failed == nil && min(c.window, s.stream.window) <= 0 {
			c.mu.Unlock()
			c.flush()
			c.mu.Lock()
			if s.failed == nil && min(c.window, s.stream.window) <= 0 {
				s.block()
			}
		}
		if s.failed != nil {
			err := s.failed
			s.broken = s.broken || len(rest) < len(framed)
			c.mu.Unlock()
			return err
		}
		if !s.began {
			s.began = true
			c.appendBlock(s.stream.id, false, s.header())
		}
		part := rest[:min(len(rest), maxFrame)]
		rest = rest[len(part)-len(c.appendData(&s.stream, part)):]
		c.progress = true
		c.unstick()
		full := len(rest) == 0 || len(c.out) >= maxFrame
		c.mu.Unlock()
		if full {
			c.flush()
		}
	}
	return nil
}

// zippedBlock is the header block of an answer whose messages may be compressed.
var zippedBlock = encode(
	hpack.HeaderField{Name: ":status", Value: "200"}, hpack.HeaderField{Name: "content-type", Value: "application/grpc"},
	hpack.HeaderField{Name: "grpc-encoding", Value: gzipEncoding},
)

func (s *Stream) header() []byte {
	if s.encoding == gzipEncoding {
		return zippedBlock
	}
	return answerBlock
}

// block waits until the windows have room, or the stream is over. The connection's lock must be held.
func (s *Stream) block() {
	c := s.stream.conn
	if c.blockedStreams++; c.stuckSince.IsZero() {
		c.stuckSince = time.Now()
	}
	s.room.Wait()
	c.blockedStreams--
}
