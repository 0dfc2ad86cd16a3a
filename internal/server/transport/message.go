package transport

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc/codes"
)

const (
	gzipEncoding      = "gzip"
	identity          = "identity"
	acceptedEncodings = gzipEncoding

	tooManyCalls  = "too many calls in flight"
	secondMessage = "a unary call has more than one message"
	notCompressed = "grpc: compressed flag set with identity or empty encoding"
)

func tooLarge(size uint32, bound int) string {
	return fmt.Sprintf("grpc: received message larger than max (%d vs. %d)", size, bound)
}

func unknownFormat(flag byte) string {
	return fmt.Sprintf("grpc: received unexpected payload format %d", flag)
}

// known reports whether messages with this grpc-encoding can be decoded.
func known(encoding string) bool {
	return encoding == "" || encoding == identity || encoding == gzipEncoding
}

func unknownEncoding(encoding string) string {
	return fmt.Sprintf("grpc: Decompressor is not installed for grpc-encoding %q", encoding)
}

// part is a part of a long message. Memory for the whole message is allocated when all of it has arrived, because a
// client may announce a long message and never send it, and a growing buffer would leave garbage behind.
type part [16 << 10]byte

var parts = sync.Pool{New: func() any { return new(part) }}

// add adds data to the message. The first bytes are in buf, the others in parts.
func (c *Call) add(data []byte) {
	n := min(len(data), max(0, len(part{})-len(c.buf)))
	c.buf = append(c.buf, data[:n]...)
	for data = data[n:]; len(data) > 0; data = data[n:] {
		if c.last == 0 {
			c.parts = append(c.parts, parts.Get().(*part))
		}
		n = copy(c.parts[len(c.parts)-1][c.last:], data)
		c.last = (c.last + n) % len(part{})
	}
}

// size returns the memory of the message in bytes, without reused buffers.
func (c *Call) size() int64 {
	n := len(c.parts) * len(part{})
	if cap(c.buf) > maxKeptMessage {
		n += cap(c.buf)
	}
	if c.unpacked {
		n += cap(c.Message)
	}
	if len(c.Message) > maxKeptMessage {
		n += len(c.Message) // the handler has a copy as a string
	}
	return int64(n)
}

// join moves all size bytes into buf.
func (c *Call) join(size int) {
	if len(c.parts) == 0 {
		return
	}
	whole := append(make([]byte, 0, size), c.buf...)
	for _, p := range c.parts {
		whole = append(whole, p[:min(len(p), size-len(whole))]...)
	}
	c.buf = whole
	c.freeParts()
}

// freeParts releases the parts. Only the goroutine that reads the connection calls it.
func (c *Call) freeParts() {
	for _, p := range c.parts {
		parts.Put(p)
	}
	c.parts, c.last = nil, 0
}

// compressed reports whether the message is marked as compressed.
func (c *Call) compressed() bool { return len(c.buf) > 0 && c.buf[0] != 0 }

// decode extracts the message from the received data. The code is OK, or the reason of a failure.
func (c *Call) decode(bound int) (codes.Code, string) {
	if len(c.buf) < prefixSize {
		return codes.Internal, "the call has no complete message"
	}
	size := int(binary.BigEndian.Uint32(c.buf[1:]))
	rest := c.buf[prefixSize:]
	switch {
	case len(rest) < size:
		return codes.Internal, "the call has no complete message"
	case len(rest) > size:
		return codes.Internal, secondMessage
	}
	switch c.buf[0] {
	case 0:
		c.Message = rest
		return codes.OK, ""
	case 1:
	default:
		return codes.Internal, unknownFormat(c.buf[0])
	}
	if c.head.encoding != gzipEncoding {
		return codes.Internal, notCompressed
	}
	message, code, text := Unzip(rest, bound)
	c.Message, c.unpacked = message, true
	return code, text
}

// Unzip decompresses a message. A few bytes may encode a very long message, so it stops at the bound.
func Unzip(packed []byte, bound int) ([]byte, codes.Code, string) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, codes.Internal, "grpc: failed to decompress the received message: " + err.Error()
	}
	// The last bytes give the size. Deflate compresses by a factor of at most 1,032.
	size := min(int(binary.LittleEndian.Uint32(packed[len(packed)-4:])), bound, 1032*len(packed))
	into := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := into.ReadFrom(io.LimitReader(r, int64(bound)+1)); err != nil {
		return nil, codes.Internal, "grpc: failed to decompress the received message: " + err.Error()
	}
	message := into.Bytes()
	if len(message) > bound {
		return nil, codes.ResourceExhausted, fmt.Sprintf("grpc: received message after decompression larger than max %d",
			bound)
	}
	return message, codes.OK, ""
}

var zippers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// appendZipped appends a compressed message. A compressor needs much memory, so connections take turns.
func (s *Server) appendZipped(b, message []byte) []byte {
	s.large <- struct{}{}
	defer func() { <-s.large }()
	into := blockBuffer(b)
	z := zippers.Get().(*gzip.Writer)
	z.Reset(&into)
	_, _ = z.Write(message) // writing to memory does not fail
	_ = z.Close()
	zippers.Put(z)
	return into
}
