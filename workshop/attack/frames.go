package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

// client breaks the protocol's rules. Its frames collect in out; flush sends them and returns any error.
type client struct {
	net.Conn
	*http2test.Client // writes into out
	out               bytes.Buffer
	block             []byte // the header block of a call
}

// habits are how a client behaves apart from its attack. The zero value reads all replies and opens its windows wide.
type habits struct {
	mute       bool // reads nothing
	zeroWindow bool // never lets the server send DATA on a stream
	elsewhere  bool // has an address that the victim does not share
}

// connect opens a connection that ends with ctx. With elsewhere, it comes from an address that the victim does not
// share.
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

// open connects and starts HTTP/2. Unless h.mute is set, it reads and discards everything that the server sends.
func open(ctx context.Context, at string, h habits) (*client, error) {
	conn, err := connect(ctx, at, h.elsewhere)
	if err != nil {
		return nil, err
	}
	c := &client{Conn: conn}
	c.Client = http2test.New(&c.out, conn)
	window := uint32(1<<31 - 1)
	if h.zeroWindow {
		window = 0
	}
	_ = c.Greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	_ = c.WriteWindowUpdate(0, 1<<30)
	c.block = headerBlock(decide)
	if !h.mute {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	return c, c.flush()
}

// headerBlock is the header block of a call, with more fields at its end.
func headerBlock(path string, more ...string) []byte {
	return http2test.Unindexed(http2test.Fields(path, more...)...)
}

func (c *client) flush() error {
	_, err := c.out.WriteTo(c.Conn)
	return err
}

// begin writes the headers of the next call into the buffer, which starts the call.
func (c *client) begin() {
	_ = c.Begin(c.block)
}

// send writes the message of the call into the buffer.
func (c *client) send(message []byte) {
	c.sendPart(len(message), message, true)
}

// sendPart writes the first part of the call's message into the buffer. claimed is the length in the message's prefix.
func (c *client) sendPart(claimed int, part []byte, end bool) {
	_ = c.WriteBody(c.Stream, end, http2test.Message(claimed, part))
}

// several runs an attack on several connections until ctx is done. It reopens each connection that the server closes.
func several(ctx context.Context, at string, n int, h habits, do func(c *client) error) error {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				c, err := open(ctx, at, h)
				if err == nil {
					for err == nil && ctx.Err() == nil && c.Stream < 1<<30 {
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
		if int(c.Stream/2) >= calls {
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
		panic(err) // impossible: we built the message
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

// newKeys sends calls that each need a new counter.
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

// idle opens connections that only answer pings. It reopens each connection that the server closes.
func idle(ctx context.Context, at string, n int) error {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				if c, err := open(ctx, at, habits{mute: true, elsewhere: true}); err == nil {
					for {
						f, err := c.ReadFrame()
						if err != nil {
							break
						}
						if p, ok := f.(*http2.PingFrame); ok && !p.IsAck() {
							_ = c.WritePing(true, p.Data)
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
		if c.Stream == 0 {
			c.Stream = 1
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: c.Stream, BlockFragment: c.block})
		}
		for range 1_000 {
			_ = c.WriteContinuation(c.Stream, false, nil)
		}
		return nil
	})
}

// regex sends calls of 3.8 MB with values of 8 KB, which the rules match against regular expressions.
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
