// Package http2test is a client of gRPC that writes HTTP/2 frame by frame, for tests, loads and attacks: libraries
// cannot send such frames, and cost more. A Client is used by one goroutine at a time.
package http2test

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxFrame is the largest payload of a frame that every server accepts.
const maxFrame = 16 << 10

// Client is the client's end of a connection. Its Framer does not check the frames.
type Client struct {
	*http2.Framer
	Stream  uint32 // stream of the last call; 0 before the first
	Encoder *hpack.Encoder

	out   io.Writer
	block bytes.Buffer // buffer of Encoder
}

// New returns a client that writes to out and reads from in: a connection, or a buffer in front of one.
func New(out io.Writer, in io.Reader) *Client {
	c := &Client{Framer: http2.NewFramer(out, in), out: out}
	c.AllowIllegalWrites, c.AllowIllegalReads = true, true
	c.Encoder = hpack.NewEncoder(&c.block)
	return c
}

// Greet writes the preface of the connection and the client's settings.
func (c *Client) Greet(settings ...http2.Setting) error {
	if _, err := io.WriteString(c.out, http2.ClientPreface); err != nil {
		return err
	}
	return c.WriteSettings(settings...)
}

// Fields are the header fields of a call, and more names and values. Each of these replaces the field with its name, or
// is appended.
func Fields(path string, more ...string) []hpack.HeaderField {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "test"},
		{Name: "te", Value: "trailers"}, {Name: "content-type", Value: "application/grpc"},
	}
	for pair := range slices.Chunk(more, 2) {
		f := hpack.HeaderField{Name: pair[0], Value: pair[1]}
		if at := slices.IndexFunc(fields[:6], func(o hpack.HeaderField) bool { return o.Name == f.Name }); at >= 0 {
			fields[at] = f
		} else {
			fields = append(fields, f)
		}
	}
	return fields
}

// Unindexed is a header block that leaves the connection's table as it is, so that any client may send it, again and
// again.
func Unindexed(fields ...hpack.HeaderField) []byte {
	for i := range fields {
		fields[i].Sensitive = true
	}
	return New(nil, nil).Encode(fields...)
}

// Encode is the next header block of the connection. It must be written before blocks that are encoded later.
func (c *Client) Encode(fields ...hpack.HeaderField) []byte {
	c.block.Reset()
	for _, f := range fields {
		_ = c.Encoder.WriteField(f) // a bytes.Buffer never fails
	}
	return bytes.Clone(c.block.Bytes())
}

// Begin starts the next call, whose message follows.
func (c *Client) Begin(block []byte) error {
	c.Stream += 1 + c.Stream%2
	return c.WriteBlock(c.Stream, false, block)
}

// WriteBlock writes a header block, with CONTINUATION frames if it is long.
func (c *Client) WriteBlock(stream uint32, end bool, block []byte) error {
	first, rest := split(block)
	err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndHeaders: len(rest) == 0,
		EndStream: end})
	for err == nil && len(rest) > 0 {
		first, rest = split(rest)
		err = c.WriteContinuation(stream, len(rest) == 0, first)
	}
	return err
}

// WriteBody writes DATA frames.
func (c *Client) WriteBody(stream uint32, end bool, body []byte) error {
	first, rest := split(body)
	for len(rest) > 0 {
		if err := c.WriteData(stream, false, first); err != nil {
			return err
		}
		first, rest = split(rest)
	}
	return c.WriteData(stream, end, first)
}

func split(p []byte) (first, rest []byte) {
	n := min(len(p), maxFrame)
	return p[:n], p[n:]
}

// Message is a message with gRPC's prefix, or the first part of one with a claimed size.
func Message(claimed int, part []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(claimed)), part...)
}
