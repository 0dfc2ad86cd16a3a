package transport

import (
	"encoding/binary"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// readData reads a DATA frame. It reads a long one in parts, because the framer would keep a buffer for whole frames.
func (c *reader) readData(fh http2.FrameHeader) error {
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

func (c *reader) dataOf(fh http2.FrameHeader, data []byte) error {
	size, ended := int64(fh.Length), fh.Flags.Has(http2.FlagDataEndStream)
	// credit is returned well before the window is used up, so a violation of the connection's window does not show here
	c.received += size
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
	st.received += size
	over, closed := st.received > receiveWindow, st.ended
	if st.long == nil && !ended && st.received >= creditAfter {
		c.out = appendCredit(c.out, st.id, st.received)
		st.received = 0
	}
	if st.long != nil && len(data) < int(size) { // padding is never passed on
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
func (c *reader) body(st *stream, data []byte, ended bool) error {
	st.body += int64(len(data))
	if st.declared >= 0 && (st.body > st.declared || ended && st.body < st.declared) {
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	if st.call == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		st.ended = ended
		switch {
		case st.long != nil:
			st.long.arrive(data)
		case ended:
			c.answerDeclined(st)
		}
		return nil
	}
	call := st.call
	call.add(data)
	c.holdMessage(call)
	if len(call.buf) >= prefixSize {
		if n := binary.BigEndian.Uint32(call.buf[1:]); int64(n) > int64(c.server.opts.MaxMessageBytes) {
			if ended {
				c.setEnded(st)
			}
			c.rejectCall(call, codes.ResourceExhausted, tooLarge(n, c.server.opts.MaxMessageBytes))
			return nil
		}
	}
	if st.body > int64(c.server.opts.MaxMessageBytes)+prefixSize {
		if ended {
			c.setEnded(st)
		}
		c.rejectCall(call, codes.Internal, secondMessage)
		return nil
	}
	if !ended {
		return nil
	}
	c.setEnded(st)
	if st.body > largeMessage || call.compressed() {
		c.decodeLarge()
	}
	call.join(int(st.body))
	code, text := call.decode(c.server.opts.MaxMessageBytes)
	c.holdMessage(call)
	if code != codes.OK {
		c.rejectCall(call, code, text)
		return nil
	}
	c.batch = append(c.batch, call)
	return nil
}

// holdMessage counts the memory of a call's message.
func (c *conn) holdMessage(call *Call) {
	size := call.size()
	if size == call.held {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !call.stream.gone || call.stream.ended { // otherwise its memory was already released
		c.hold(&call.stream, size-call.held)
		call.held = size
	}
}

func (c *conn) setEnded(st *stream) {
	c.mu.Lock()
	st.ended = true
	c.mu.Unlock()
}

// Messages of at least largeMessage bytes are decoded one after another. Decoded messages are several times as large,
// and many connections could decode at the same time.
const largeMessage = 64 << 10

// decodeLarge waits until the connection may decode large or compressed messages, and pass them on. Only the reading
// goroutine calls it. Until handle makes room for other connections, this goroutine must not wait for the client or for
// an answer.
func (c *reader) decodeLarge() {
	if !c.decodesLarge {
		c.server.large <- struct{}{}
		c.decodesLarge = true
	}
}

// decoded lets another connection decode large messages.
func (c *reader) decoded() {
	if c.decodesLarge {
		c.decodesLarge = false
		<-c.server.large
	}
}
