package transport

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
)

const (
	gzipEncoding      = "gzip"
	identity          = "identity"
	acceptedEncodings = gzipEncoding

	tooManyCalls  = "too many calls in flight"
	secondMessage = "a unary call has more than one message"
)

func tooLarge(size uint32, bound int) string {
	return fmt.Sprintf("grpc: received message larger than max (%d vs. %d)", size, bound)
}

// known reports whether messages of a grpc-encoding can be read.
func known(encoding string) bool {
	return encoding == "" || encoding == identity || encoding == gzipEncoding
}

func unknownEncoding(encoding string) string {
	return fmt.Sprintf("grpc: Decompressor is not installed for grpc-encoding %q", encoding)
}

// decode finds the message in what the client has sent. The code is OK, or why there is none.
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
		return codes.Internal, fmt.Sprintf("grpc: received unexpected payload format %d", c.buf[0])
	}
	if c.head.encoding != gzipEncoding {
		return codes.Internal, "grpc: compressed flag set with identity or empty encoding"
	}
	return c.unzip(rest, bound)
}

// unzip decompresses a message. A few bytes may stand for a very long message, so no more than the bound is read.
func (c *Call) unzip(packed []byte, bound int) (codes.Code, string) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return codes.Internal, "grpc: failed to decompress the received message: " + err.Error()
	}
	message, err := io.ReadAll(io.LimitReader(r, int64(bound)+1))
	if err != nil {
		return codes.Internal, "grpc: failed to decompress the received message: " + err.Error()
	}
	if len(message) > bound {
		return codes.ResourceExhausted, fmt.Sprintf("grpc: received message after decompression larger than max %d", bound)
	}
	c.Message = message
	return codes.OK, ""
}
