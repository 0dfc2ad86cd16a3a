package transport

import (
	"errors"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// readHeaders reads a HEADERS frame, and the CONTINUATION frames after it.
func (c *reader) readHeaders(fh http2.FrameHeader) error {
	defer c.headers.letGo()
	ended := fh.Flags.Has(http2.FlagHeadersEndStream)
	if fh.Flags&^http2.FlagHeadersEndStream == http2.FlagHeadersEndHeaders && fh.Length <= readBuffer && fh.StreamID != 0 {
		block, err := c.buf.Peek(int(fh.Length))
		if err != nil {
			return err
		}
		err = c.headers.read(block)
		_, _ = c.buf.Discard(len(block))
		if err != nil {
			return err
		}
	} else if err := c.readOtherHeaders(fh); err != nil {
		return err
	}
	return c.headersRead(fh.StreamID, ended)
}

// readOtherHeaders reads a HEADERS frame other than a single short block.
func (c *reader) readOtherHeaders(fh http2.FrameHeader) error {
	f, err := c.framer.ReadFrameForHeader(fh)
	if _, ok := errors.AsType[http2.StreamError](err); ok {
		return http2.ConnectionError(http2.ErrCodeProtocol) // the block cannot be decoded, and later ones depend on it
	}
	if err != nil {
		return err
	}
	hf := f.(*http2.HeadersFrame)
	block := hf.HeaderBlockFragment()
	c.large = c.large || len(block) > readBuffer
	if !hf.HeadersEnded() {
		c.large = true
		if block, err = c.readContinuations(block); err != nil {
			return err
		}
		defer c.countMore(-int64(len(block)))
	}
	if err := c.headers.read(block); err != nil {
		return err
	}
	if hf.HasPriority() && checkPriority(hf.StreamID, hf.Priority) != nil {
		return c.resetNew(hf.StreamID, hf.StreamEnded(), http2.ErrCodeProtocol)
	}
	return nil
}

// headersRead starts or ends a request after its header block.
func (c *reader) headersRead(id uint32, ended bool) error {
	c.mu.Lock()
	st, rejected := c.streams[id], c.rejected.has(id) && !c.finished.has(id)
	c.mu.Unlock()
	switch {
	case rejected:
		return nil
	case st != nil:
		return c.trailers(st, ended)
	}
	h, ok := c.headers.request()
	if !ok {
		code := http2.ErrCodeProtocol
		if c.headers.tooLong {
			code = http2.ErrCodeFrameSize
			c.idleFrames += longHeaders
		}
		return c.resetNew(id, ended, code)
	}
	return c.request(id, h, ended)
}

// readContinuations reads the rest of a header block and returns the whole block.
func (c *reader) readContinuations(first []byte) ([]byte, error) {
	block := append([]byte(nil), first...)
	c.countMore(int64(len(block)))
	for range maxContinuations {
		f, err := c.framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		more := f.(*http2.ContinuationFrame) // the framer accepts nothing else here
		block = append(block, more.HeaderBlockFragment()...)
		c.countMore(int64(len(more.HeaderBlockFragment())))
		if more.HeadersEnded() {
			return block, nil
		}
	}
	return nil, c.overBound(intake.HeadersWithoutEnd)
}

// overBound counts a connection that exceeds a bound, and returns the error that ends it.
func (c *conn) overBound(why intake.Reason) error {
	if c.limits != nil {
		c.limits.Count(why)
	}
	return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
}

// resetNew opens and resets the stream of a malformed request.
func (c *conn) resetNew(id uint32, ended bool, code http2.ErrCode) error {
	if err := c.openStream(id); err != nil {
		return err
	}
	c.mu.Lock()
	c.closed(id, ended)
	c.mu.Unlock()
	return http2.StreamError{StreamID: id, Code: code}
}

// trailers ends the body of a request.
func (c *reader) trailers(st *stream, ended bool) error {
	c.mu.Lock()
	again := st.ended
	c.mu.Unlock()
	switch {
	case again:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	case !ended || !c.headers.trailers():
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	return c.body(st, nil, true)
}

// openStream checks the id of a new stream.
func (c *conn) openStream(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case id%2 == 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case id > c.latest:
		c.latest = id
		return nil
	case c.streams[id] != nil:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	case c.finished.has(id):
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	default:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
}

// request starts a request.
func (c *reader) request(id uint32, h *head, ended bool) error {
	if err := c.openStream(id); err != nil {
		return err
	}
	if c.now.IsZero() {
		c.now = time.Now()
		c.read.Store(int64(c.now.Sub(c.server.began)))
	}
	c.mu.Lock()
	if c.leaving && id > c.lastServed {
		c.closed(id, ended)
		c.mu.Unlock()
		return nil // the client knows from the GOAWAY that it is not served
	}
	// requests whose answers wait for the client count as open
	if c.open+uint32(len(c.blockedAnswers)) >= c.server.opts.MaxStreams {
		c.closed(id, ended)
		c.mu.Unlock()
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	if h.declared > 0 && ended {
		c.closed(id, ended)
		c.mu.Unlock()
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	c.open++
	c.mu.Unlock()
	switch {
	case h.known == nil:
		return c.decline(id, h, ended)
	case h.known.stream != nil:
		return c.beginStream(id, h, ended)
	}
	return c.beginCall(id, h, ended)
}

// add adds a stream, and counts the memory of its header fields.
func (c *conn) add(st *stream, held int) {
	c.mu.Lock()
	c.hold(st, int64(held))
	if c.isClosed {
		c.abort(st)
	} else {
		st.window = c.initial
		c.streams[st.id] = st
		c.mostStreams = max(c.mostStreams, len(c.streams))
	}
	c.mu.Unlock()
}

// beginCall starts a call of one of the handler's methods.
func (c *reader) beginCall(id uint32, h *head, ended bool) error {
	call := c.server.calls.Get().(*Call)
	call.stream = stream{conn: c.conn, id: id, declared: h.declared, ended: ended, call: call}
	call.head = *h
	held := len(h.encoding)
	for _, value := range c.headers.values {
		call.values = append(call.values, value)
		held += len(value)
	}
	if h.timed {
		call.deadline = c.now.Add(h.timeout)
	}
	inFlight, ok := c.server.opts.Calls.Begin(c.limits)
	call.inFlight, call.counted = inFlight, ok
	c.add(&call.stream, held)
	if !ok || !known(h.encoding) {
		if ended {
			c.setEnded(&call.stream)
		}
		if ok {
			c.rejectCall(call, codes.Unimplemented, unknownEncoding(h.encoding))
		} else {
			c.rejectCall(call, codes.ResourceExhausted, tooManyCalls)
		}
		return nil
	}
	if ended {
		return c.body(&call.stream, nil, true)
	}
	return nil
}

// rejectCall answers a call without the handler.
func (c *conn) rejectCall(call *Call, code codes.Code, message string) {
	accept := ""
	if code == codes.Unimplemented {
		accept = acceptedEncodings
	}
	c.server.opts.Failed(code)
	c.setHandling(true) // the connection is flushed after this batch
	call.fail(code, message, accept)
	c.setHandling(false)
}
