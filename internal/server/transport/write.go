package transport

import (
	"encoding/binary"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

const (
	frameHeader    = 9
	prefixSize     = 5          // size of the prefix of a gRPC message: a compression flag and the length
	maxKeptOutput  = 8 << 10    // largest reused buffer of a connection: about eighty answers
	maxKeptMessage = 4 << 10    // largest reused buffer of a call
	tableIsEmpty   = byte(0x20) // a dynamic table size update to 0
)

// Header blocks are constant, and do not refer to a dynamic table, so they are valid on any connection.
var (
	answerBlock = encode(hpack.HeaderField{Name: ":status", Value: "200"},
		hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
	trailerBlock = encode(hpack.HeaderField{Name: "grpc-status", Value: "0"})
)

// encode returns a constant header block, without references to a dynamic table. It creates an encoder of 4 KiB each
// time. For parts of a single answer, use appendField.
func encode(fields ...hpack.HeaderField) []byte {
	var b blockBuffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSize(0)
	for _, f := range fields {
		_ = e.WriteField(f) // writing to memory does not fail
	}
	return b[1:] // without the update of the table's size
}

// appendField appends a header field in the form without table or Huffman code, because the answers are the largest
// cost of a flood of rejected calls. The name must be in lower case.
func appendField(block []byte, name, value string) []byte {
	const long = 1<<7 - 1 // the first length that continues in further bytes
	block = append(block, 0)
	for _, s := range [...]string{name, value} {
		if len(s) < long {
			block = append(block, byte(len(s)))
		} else {
			block = binary.AppendUvarint(append(block, long), uint64(len(s)-long))
		}
		block = append(block, s...)
	}
	return block
}

type blockBuffer []byte

// Write implements io.Writer.
func (b *blockBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

func appendFrame(b []byte, kind http2.FrameType, flags http2.Flags, id uint32, length int) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

// appendServerPreface appends the first frames of a connection.
func appendServerPreface(b []byte, maxStreams, maxHeaderBytes uint32) []byte {
	settings := [...]http2.Setting{
		{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams},
		{ID: http2.SettingInitialWindowSize, Val: receiveWindow},
		{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderBytes},
	}
	b = appendFrame(b, http2.FrameSettings, 0, 0, 6*len(settings))
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return appendCredit(b, 0, receiveWindow-initialWindow)
}

func appendCredit(b []byte, id uint32, n int64) []byte {
	b = appendFrame(b, http2.FrameWindowUpdate, 0, id, 4)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

func appendPing(b []byte, answer bool, data [8]byte) []byte {
	flags := http2.Flags(0)
	if answer {
		flags = http2.FlagPingAck
	}
	b = appendFrame(b, http2.FramePing, flags, 0, len(data))
	return append(b, data[:]...)
}

func appendGoAway(b []byte, last uint32, code http2.ErrCode, debug []byte) []byte {
	b = appendFrame(b, http2.FrameGoAway, 0, 0, 8+len(debug))
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, debug...)
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	b = appendFrame(b, http2.FrameRSTStream, 0, id, 4)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

// appendBlock appends a header block as a HEADERS frame, and as CONTINUATION frames if it is long. The connection's
// lock must be held, because the order of header blocks matters.
func (c *conn) appendBlock(id uint32, last bool, block []byte) {
	flags := http2.Flags(0)
	if last {
		flags = http2.FlagHeadersEndStream
	}
	update := 0
	if c.resizes {
		update = 1
	}
	first := min(len(block), maxFrame-update)
	if first == len(block) {
		flags |= http2.FlagHeadersEndHeaders
	}
	c.out = appendFrame(c.out, http2.FrameHeaders, flags, id, first+update)
	if c.resizes {
		c.out = append(c.out, tableIsEmpty)
		c.resizes = false
	}
	c.out = append(c.out, block[:first]...)
	for rest := block[first:]; len(rest) > 0; {
		n := min(len(rest), maxFrame)
		flags = 0
		if n == len(rest) {
			flags = http2.FlagContinuationEndHeaders
		}
		c.out = appendFrame(c.out, http2.FrameContinuation, flags, id, n)
		c.out = append(c.out, rest[:n]...)
		rest = rest[n:]
	}
}

// appendStatus appends the header block that ends an answer: the only one, or, if began, the trailers. The lock must be
// held.
func (c *conn) appendStatus(id uint32, began bool, code codes.Code, message, acceptEncoding string) {
	var room [256]byte
	block := room[:0]
	if !began {
		block = append(block, answerBlock...)
	}
	if acceptEncoding != "" {
		block = appendField(block, "grpc-accept-encoding", acceptEncoding)
	}
	block = appendField(block, "grpc-status", strconv.Itoa(int(code)))
	if message != "" {
		block = appendField(block, "grpc-message", percentEncode(message))
	}
	c.appendBlock(id, true, block)
}

// percentEncode encodes a message for the gRPC protocol: everything but printable ASCII, and the percent sign.
func percentEncode(s string) string {
	const hex = "0123456789ABCDEF"
	clean := true
	for i := range len(s) {
		clean = clean && s[i] >= ' ' && s[i] <= '~' && s[i] != '%'
	}
	if clean {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// blockedAnswer is a part of an answer that waits for the client's windows.
type blockedAnswer struct {
	stream *stream
	data   []byte
	size   int64 // memory of data with its capacity, in bytes
}

// answer appends a message and the trailers of an answer. The lock must be held.
func (c *conn) answer(st *stream, m Message) {
	start := len(c.out)
	c.out = appendFrame(c.out, http2.FrameData, 0, st.id, 0)
	c.out = append(c.out, 0, 0, 0, 0, 0)
	c.out = m.AppendTo(c.out)
	data := c.out[start+frameHeader:]
	binary.BigEndian.PutUint32(data[1:], uint32(len(data)-prefixSize))
	if int64(len(data)) <= min(c.window, st.window, int64(c.frame)) {
		n := len(data)
		c.out[start], c.out[start+1], c.out[start+2] = byte(n>>16), byte(n>>8), byte(n)
		c.window -= int64(n)
		st.window -= int64(n)
		c.appendBlock(st.id, true, trailerBlock)
		c.answered(st)
		return
	}
	data = append([]byte(nil), data...)
	c.out = c.out[:start]
	c.send(st, data)
}

// appendEnd appends the end of an answer after its DATA. The lock must be held.
func (c *conn) appendEnd(st *stream) {
	if st.declined != nil {
		c.out = appendFrame(c.out, http2.FrameData, http2.FlagDataEndStream, st.id, 0)
		return
	}
	c.appendBlock(st.id, true, trailerBlock)
}

// send appends DATA and the trailers of an answer. The part without room in the windows waits. The lock must be held.
func (c *conn) send(st *stream, data []byte) {
	size := int64(cap(data))
	if data = c.appendData(st, data); len(data) == 0 {
		c.appendEnd(st)
		c.answered(st)
		return
	}
	st.waiting = true
	c.blockedAnswers = append(c.blockedAnswers, blockedAnswer{st, data, size})
	if c.stuckSince.IsZero() {
		c.stuckSince = time.Now()
	}
	c.blockedBytes += len(data)
	c.count(size + blockedOverhead)
	if c.blockedBytes > maxBlocked && len(c.blockedAnswers) > 1 && !c.unread {
		c.unread, c.leaving, c.lastServed = true, true, c.latest
		c.out = appendGoAway(c.out, c.latest, http2.ErrCodeEnhanceYourCalm, []byte("answers are not read"))
		if c.limits != nil {
			c.limits.Count(intake.NotReading)
		}
		go func() {
			_ = c.sock.SetWriteDeadline(time.Now().Add(time.Second))
			c.flush()
			c.leave()
		}()
	}
}

// appendData appends as much DATA as the windows have room for, and returns the rest. The lock must be held.
func (c *conn) appendData(st *stream, data []byte) []byte {
	for len(data) > 0 {
		n := int(min(int64(len(data)), c.window, st.window, int64(c.frame)))
		if n <= 0 {
			return data
		}
		c.out = appendFrame(c.out, http2.FrameData, 0, st.id, n)
		c.out = append(c.out, data[:n]...)
		c.wrote.Store(true)
		c.window -= int64(n)
		st.window -= int64(n)
		data = data[n:]
	}
	return nil
}

// sendBlocked sends waiting answers, as far as the windows allow. A stream without room does not delay the others. The
// lock must be held.
func (c *conn) sendBlocked() {
	if len(c.blockedAnswers) == 0 {
		return
	}
	kept := c.blockedAnswers[:0]
	for _, o := range c.blockedAnswers {
		before := len(o.data)
		o.data = c.appendData(o.stream, o.data)
		c.blockedBytes += len(o.data) - before
		if len(o.data) > 0 {
			kept = append(kept, o)
			continue
		}
		c.unblock(o)
		c.appendEnd(o.stream)
		c.answered(o.stream)
	}
	if len(kept) < len(c.blockedAnswers) {
		c.unstick()
	}
	clear(c.blockedAnswers[len(kept):])
	c.blockedAnswers = kept
}

// unblock removes an answer from the waiting ones. The lock must be held.
func (c *conn) unblock(o blockedAnswer) {
	o.stream.waiting = false
	c.blockedBytes -= len(o.data)
	c.count(-o.size - blockedOverhead)
}

// drop drops the waiting answer of a stream. The lock must be held.
func (c *conn) drop(st *stream) {
	kept := c.blockedAnswers[:0]
	for _, o := range c.blockedAnswers {
		if o.stream == st {
			c.unblock(o)
			continue
		}
		kept = append(kept, o)
	}
	clear(c.blockedAnswers[len(kept):])
	c.blockedAnswers = kept
}

// answered forgets a stream whose answer is complete. The lock must be held.
func (c *conn) answered(st *stream) {
	c.progress = true
	if !st.ended {
		c.out = appendReset(c.out, st.id, http2.ErrCodeNo) // the rest of the request is not needed
	}
	c.remove(st)
}
