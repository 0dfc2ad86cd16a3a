package transport

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/intake"
)

// readFrame reads and handles one frame. A StreamError ends a stream, any other error the connection.
func (c *conn) readFrame() error {
	fh, err := c.framer.ReadFrameHeader()
	if err != nil {
		return err
	}
	if !c.settled && (fh.Type != http2.FrameSettings || fh.Flags.Has(http2.FlagSettingsAck)) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	switch fh.Type {
	case http2.FrameHeaders:
		return c.readHeaders(fh)
	case http2.FrameData:
		return c.readData(fh)
	}
	now := time.Now()
	c.read.Store(now.UnixNano())
	c.large = c.large || fh.Length > readBuffer
	f, err := c.framer.ReadFrameForHeader(fh)
	if err != nil {
		return err
	}
	if !c.idle() {
		return c.overBound(intake.TooManyFrames)
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		return c.ping(f, now)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.resetByClient(f.StreamID)
	case *http2.PriorityFrame:
		return checkPriority(f.StreamID, f.PriorityParam)
	case *http2.PushPromiseFrame, *http2.ContinuationFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // frames of other types have no meaning for a server
}

func checkPriority(id uint32, p http2.PriorityParam) error {
	if p.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	return nil
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.settled = true
	if f.NumSettings() > maxSettings {
		return c.overBound(intake.TooManyFrames)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.initial
	if err := f.ForeachSetting(c.set); err != nil {
		return err
	}
	if err := c.shift(c.initial - before); err != nil {
		return err
	}
	c.out = appendFrame(c.out, http2.FrameSettings, http2.FlagSettingsAck, 0, 0)
	if c.initial > before {
		c.sendOwed()
		c.wake()
	}
	return nil
}

// shift changes the windows of all streams. The caller holds the lock.
func (c *conn) shift(change int64) error {
	if change == 0 {
		return nil
	}
	c.idleFrames += len(c.streams) // as much work as so many frames
	for _, st := range c.streams {
		if st.window += change; st.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	}
	return nil
}

// wake lets those requests for Other go on that the windows have room for. To wake all would let a client keep the server busy
// with small frames. The caller holds the lock.
func (c *conn) wake() {
	if c.blocked == 0 || c.window <= 0 {
		return
	}
	for _, st := range c.streams {
		if x := st.exchange; x != nil && st.window > 0 {
			x.room.Signal()
		}
	}
}

// set applies a setting of the client. The caller holds the lock.
func (c *conn) set(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		if s.Val < hpackTable {
			c.resizes = true
		}
	case http2.SettingInitialWindowSize:
		c.initial = int64(s.Val)
	case http2.SettingMaxFrameSize:
		c.frame = int(min(s.Val, 1<<20))
	}
	return nil
}

func (c *conn) ping(f *http2.PingFrame, now time.Time) error {
	if f.IsAck() {
		if f.Data == drainPing {
			c.drained()
		}
		return nil
	}
	least := c.server.opts.MinPingInterval
	switch {
	case c.wrote.Swap(false):
		c.strikes = 0
	case least > 0 && now.Sub(c.lastPing) < least:
		c.strikes++
	}
	c.lastPing = now
	if c.strikes > maxStrikes {
		_ = c.overBound(intake.TooManyPings)
		return tooManyPings{}
	}
	c.mu.Lock()
	c.out = appendPing(c.out, true, f.Data)
	c.mu.Unlock()
	return nil
}

// tooManyPings is why a connection is closed whose client pings too often. Clients know the text of the GOAWAY.
type tooManyPings struct{}

// Error implements error.
func (tooManyPings) Error() string { return "too_many_pings" }

func (c *conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		before := c.window
		if c.window += int64(f.Increment); c.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		if before <= 0 { // else nothing waits for this window
			c.sendOwed()
			c.wake()
		}
		return nil
	}
	if c.unused(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	st := c.streams[f.StreamID]
	if st == nil {
		return nil
	}
	if st.window += int64(f.Increment); st.window > maxWindow {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	if st.exchange != nil {
		st.exchange.room.Signal()
	} else if st.waiting {
		c.sendOwed()
	}
	return nil
}

// unused reports whether the client has not opened a stream yet. The caller holds the lock.
func (c *conn) unused(id uint32) bool { return id > c.latest || id%2 == 0 }

func (c *conn) resetByClient(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unused(id) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.finished.add(id)
	if st := c.streams[id]; st != nil {
		c.abort(st)
	}
	return nil
}

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
		if onlyReferences(p) {
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
	if block == nil {
		h.size = int64(c.headers.size)
	}
	c.headers.remember(block, h)
	c.headers.fields = nil // the connection may be idle for a long time now
	return c.request(hf.StreamID, h, hf.StreamEnded())
}

// readBlock decodes a header block. Each block is decoded, also that of a request that is refused, because the dynamic table
// depends on all of them.
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

// readContinuations reads the rest of a header block. The decoder gets the whole block at once: it would keep a buffer for
// the parts as long as the connection lasts.
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
		c.read.Store(c.now.UnixNano())
	}
	c.mu.Lock()
	if c.leaving && id > c.lastServed {
		c.closed(id, ended)
		c.mu.Unlock()
		return nil // the GOAWAY says that it is not served
	}
	if c.open+uint32(len(c.owed)) >= c.server.opts.MaxStreams { // a request whose answer waits for the client is open as well
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
	c.hold(st, h.size)
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

// readData reads a DATA frame. A long one is read in parts, because the framer would keep a buffer for whole frames.
func (c *conn) readData(fh http2.FrameHeader) error {
	if fh.Flags.Has(http2.FlagDataPadded) || fh.StreamID == 0 {
		f, err := c.framer.ReadFrameForHeader(fh)
		c.large = c.large || fh.Length > readBuffer
		if err != nil {
			return err
		}
		return c.dataOf(fh, f.(*http2.DataFrame).Data())
	}
	part, rest := fh, fh.Length
	for {
		part.Length = min(rest, readBuffer)
		rest -= part.Length
		if rest > 0 {
			part.Flags &^= http2.FlagDataEndStream
		} else {
			part.Flags = fh.Flags
		}
		p, err := c.buf.Peek(int(part.Length))
		if err != nil {
			return err
		}
		err = c.dataOf(part, p)
		_, _ = c.buf.Discard(len(p))
		if err != nil || rest == 0 {
			_, _ = c.buf.Discard(int(rest))
			return err
		}
	}
}

func (c *conn) dataOf(fh http2.FrameHeader, data []byte) error {
	size, ended := int64(fh.Length), fh.Flags.Has(http2.FlagDataEndStream)
	if c.received += size; c.received > receiveWindow {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if size == 0 && !ended && !c.idle() {
		return c.overBound(intake.TooManyFrames)
	}
	c.mu.Lock()
	if c.received >= creditAfter {
		c.out = appendCredit(c.out, 0, c.received)
		c.received = 0
	}
	st := c.streams[fh.StreamID]
	if st == nil {
		unused, finished := c.unused(fh.StreamID), c.finished.has(fh.StreamID)
		c.mu.Unlock()
		switch {
		case unused:
			return http2.ConnectionError(http2.ErrCodeProtocol)
		case finished:
			return http2.StreamError{StreamID: fh.StreamID, Code: http2.ErrCodeStreamClosed}
		}
		if !c.idle() {
			return c.overBound(intake.TooManyFrames)
		}
		return nil // the client does not know yet that the stream is closed
	}
	c.hold(st, int64(len(data)))
	st.received += size
	over, closed := st.received > receiveWindow, st.ended
	if st.call != nil && !ended && st.received >= creditAfter {
		c.out = appendCredit(c.out, st.id, st.received)
		st.received = 0
	}
	if st.exchange != nil && len(data) < int(size) { // nobody reads the padding
		st.received -= size - int64(len(data))
		c.out = appendCredit(c.out, st.id, size-int64(len(data)))
	}
	c.mu.Unlock()
	switch {
	case closed:
		return http2.StreamError{StreamID: fh.StreamID, Code: http2.ErrCodeStreamClosed}
	case over:
		return http2.StreamError{StreamID: fh.StreamID, Code: http2.ErrCodeFlowControl}
	}
	return c.body(st, data, ended)
}

// body adds data to a request.
func (c *conn) body(st *stream, data []byte, ended bool) error {
	st.body += int64(len(data))
	if st.declared >= 0 && (st.body > st.declared || ended && st.body < st.declared) {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	if st.exchange != nil {
		if ended {
			c.setEnded(st)
		}
		st.exchange.follow(data, ended)
		st.exchange.body.write(data, ended)
		return nil
	}
	call := st.call
	call.add(data)
	if len(call.buf) >= prefixSize {
		if n := binary.BigEndian.Uint32(call.buf[1:]); int64(n) > int64(c.server.opts.MaxMessageBytes) {
			if ended {
				c.setEnded(st)
			}
			c.refuseCall(call, codes.ResourceExhausted, tooLarge(n, c.server.opts.MaxMessageBytes))
			return nil
		}
	}
	if st.body > int64(c.server.opts.MaxMessageBytes)+prefixSize {
		if ended {
			c.setEnded(st)
		}
		c.refuseCall(call, codes.Internal, secondMessage)
		return nil
	}
	if !ended {
		return nil
	}
	c.setEnded(st)
	call.join(int(st.body))
	code, text := call.decode(c.server.opts.MaxMessageBytes)
	if more := len(call.Message) - len(call.buf); more > 0 { // it was compressed
		c.mu.Lock()
		c.hold(st, int64(more))
		c.mu.Unlock()
	}
	if code != codes.OK {
		c.refuseCall(call, code, text)
		return nil
	}
	c.batch = append(c.batch, call)
	return nil
}

func (c *conn) setEnded(st *stream) {
	c.mu.Lock()
	st.ended = true
	c.mu.Unlock()
}
