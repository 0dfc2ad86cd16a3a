package transport

import (
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// readHeaders reads a HEADERS frame, and the CONTINUATION frames after it.
func (c *conn) readHeaders(fh http2.FrameHeader) error {
	var block []byte
	if fh.Flags&^http2.FlagHeadersEndStream == http2.FlagHeadersEndHeaders && fh.Length <= maxCachedBlock {
		p, err := c.buf.Peek(int(fh.Length))
		if err != nil {
			return err
		}
		if h := c.headers.find(p); h != nil {
			_, _ = c.buf.Discard(len(p))
			return c.request(fh.StreamID, h, fh.Flags.Has(http2.FlagHeadersEndStream))
		}
		if keepsTable(p) {
			block = append(block, p...)
		}
	}
	f, err := c.framer.ReadFrameForHeader(fh)
	if _, ok := errors.AsType[http2.StreamError](err); ok {
		return http2.ConnectionError(http2.ErrCodeProtocol) // the block cannot be decoded, and later ones depend on it
	}
	if err != nil {
		return err
	}
	hf := f.(*http2.HeadersFrame)
	if err := c.readBlock(hf); err != nil {
		return err
	}
	if hf.HasPriority() {
		if err := checkPriority(hf.StreamID, hf.Priority); err != nil {
			c.headers.remember(nil, nil)
			return c.refuse(hf, http2.ErrCodeProtocol)
		}
	}
	c.mu.Lock()
	st, refused := c.streams[hf.StreamID], c.refused.has(hf.StreamID) && !c.finished.has(hf.StreamID)
	c.mu.Unlock()
	if st != nil || refused {
		c.headers.remember(nil, nil)
		if refused {
			return nil
		}
		return c.trailers(st, hf.StreamEnded())
	}
	h, err := c.headers.head()
	if err != nil {
		c.headers.remember(nil, nil)
		code := http2.ErrCodeProtocol
		if c.headers.tooLong {
			code = http2.ErrCodeFrameSize
			c.idleFrames += longHeaders
		}
		return c.refuse(hf, code)
	}
	h.size = int64(c.headers.size)
	c.headers.remember(block, h)
	c.headers.fields = nil // the connection may be idle for a long time now
	return c.request(hf.StreamID, h, hf.StreamEnded())
}

// readBlock decodes a header block. It must decode the block even if the request is refused, because later blocks refer to the dynamic
// table that this block may change.
func (c *conn) readBlock(hf *http2.HeadersFrame) error {
	block := hf.HeaderBlockFragment()
	c.large = c.large || len(block) > readBuffer
	if !hf.HeadersEnded() {
		c.large = true
		var err error
		if block, err = c.readContinuations(block); err != nil {
			return err
		}
		defer c.countMore(-int64(len(block)))
	}
	c.headers.begin()
	if err := c.headers.write(block); err != nil {
		return err
	}
	return c.headers.finish()
}

// readContinuations reads the rest of a header block and returns the whole block. The decoder gets the block in one piece: if it were
// given the parts, it would keep a buffer for them for as long as the connection lives.
func (c *conn) readContinuations(first []byte) ([]byte, error) {
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

// overBound counts a connection that is over a bound, and returns the error that ends it.
func (c *conn) overBound(why intake.Reason) error {
	if c.limits != nil {
		c.limits.Count(why)
	}
	return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
}

// refuse opens and resets a stream with a malformed request.
func (c *conn) refuse(f *http2.HeadersFrame, code http2.ErrCode) error {
	if err := c.openStream(f.StreamID); err != nil {
		return err
	}
	c.mu.Lock()
	c.closed(f.StreamID, f.StreamEnded())
	c.mu.Unlock()
	return http2.StreamError{StreamID: f.StreamID, Code: code}
}

// trailers ends the body of a request.
func (c *conn) trailers(st *stream, ended bool) error {
	pseudo := slices.ContainsFunc(c.headers.fields, func(f hpack.HeaderField) bool { return strings.HasPrefix(f.Name, ":") })
	c.mu.Lock()
	again := st.ended
	c.mu.Unlock()
	switch {
	case again:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	case !ended || pseudo || c.headers.invalid != nil || c.headers.tooLong:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	return c.body(st, nil, true)
}

// openStream checks the number of a new stream.
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

// request begins a request.
func (c *conn) request(id uint32, h *head, ended bool) error {
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
		return nil // the GOAWAY says that it is not served
	}
	if c.open+uint32(len(c.blockedAnswers)) >= c.server.opts.MaxStreams { // a request whose answer waits for the client is open as well
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
	if h.forHandler {
		return c.beginCall(id, h, ended)
	}
	return c.beginExchange(id, h, ended)
}

// add adds a stream.
func (c *conn) add(st *stream, h *head) {
	c.mu.Lock()
	switch {
	case st.exchange != nil:
		c.hold(st, headerCopies*h.size)
	case !h.shared:
		c.hold(st, h.size)
	}
	if c.isClosed {
		c.abort(st)
	} else {
		st.window = c.initial
		c.streams[st.id] = st
		c.mostStreams = max(c.mostStreams, len(c.streams))
	}
	c.mu.Unlock()
}

// beginCall begins a call of the server's method.
func (c *conn) beginCall(id uint32, h *head, ended bool) error {
	call := c.server.calls.Get().(*Call)
	call.stream = stream{conn: c, id: id, declared: h.declared, ended: ended, call: call}
	call.head = h
	if h.timed {
		call.deadline = c.now.Add(h.timeout)
	}
	inFlight, ok := c.server.opts.Calls.Begin(c.limits)
	call.inFlight, call.counted = inFlight, ok
	c.add(&call.stream, h)
	if !ok || !known(h.encoding) {
		if ended {
			c.setEnded(&call.stream)
		}
		if ok {
			c.refuseCall(call, codes.Unimplemented, unknownEncoding(h.encoding))
		} else {
			c.refuseCall(call, codes.ResourceExhausted, tooManyCalls)
		}
		return nil
	}
	if ended {
		return c.body(&call.stream, nil, true)
	}
	return nil
}

// refuseCall answers a call without the handler.
func (c *conn) refuseCall(call *Call, code codes.Code, message string) {
	accept := ""
	if code == codes.Unimplemented {
		accept = acceptedEncodings
	}
	c.server.opts.Failed(code)
	c.setHandling(true) // the connection is flushed after this batch
	call.fail(code, message, accept)
	c.setHandling(false)
}
