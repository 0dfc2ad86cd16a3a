package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

// load sends requests over several connections, with a fixed number of calls in flight on each: a closed loop.
//
// It has its own HTTP/2 client. A gRPC client needs as much CPU for a call as the server, so on one core it would
// mostly measure itself.
type load struct {
	connections []*connection
}

// loadResult is the result of a run.
type loadResult struct {
	answered int64
	took     time.Duration
	latency  *hdrhistogram.Histogram // microseconds
}

func dialLoad(ctx context.Context, to peers, connections, inFlight int, p *payload) (*load, error) {
	l := &load{}
	for i := range connections {
		c, err := dial(ctx, to.addresses[i%len(to.addresses)], to.encryption, inFlight, p, uint64(i))
		if err != nil {
			l.close()
			return nil, err
		}
		l.connections = append(l.connections, c)
	}
	return l, nil
}

// peers are the servers of a target. Connections go to them in turns.
type peers struct {
	addresses  []string
	encryption *tls.Config // nil: none
}

func (l *load) close() {
	for _, c := range l.connections {
		_ = c.conn.Close()
	}
}

// run loads the server for a while, then waits for the calls that are in flight.
func (l *load) run(ctx context.Context, d time.Duration) (loadResult, error) {
	return l.drive(ctx, d, func(c *connection, start time.Time) error { return c.run(start.Add(d)) })
}

// drive loads the server over each connection with run.
func (l *load) drive(ctx context.Context, d time.Duration, run func(*connection, time.Time) error) (loadResult, error) {
	// A server that does not answer at all must not make the run hang.
	ctx, cancel := context.WithTimeout(ctx, d+30*time.Second)
	defer cancel()
	stop := context.AfterFunc(ctx, l.close)
	defer stop()

	start := time.Now()
	errs := make([]error, len(l.connections))
	var all sync.WaitGroup
	for i, c := range l.connections {
		all.Go(func() { errs[i] = run(c, start) })
	}
	all.Wait()
	r := loadResult{took: time.Since(start), latency: newHistogram()}
	if err := ctx.Err(); err != nil {
		return r, fmt.Errorf("load the server: %w", err)
	}
	for i, c := range l.connections {
		if errs[i] != nil {
			return r, fmt.Errorf("load the server: %w", errs[i])
		}
		r.answered += c.answered
		r.latency.Merge(c.latency)
	}
	return r, nil
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 60_000_000, 3) }

// Window sizes. Ours are large enough for a whole run, so only the server's windows limit it.
const (
	streamWindow     = 1 << 30
	connectionWindow = 1<<31 - 1
	defaultWindow    = 1<<16 - 1
)

// connection is one HTTP/2 connection, used by one goroutine.
type connection struct {
	*http2test.Client
	conn     net.Conn
	in       *bufio.Reader
	out      *bufio.Writer
	first    [][]byte // header blocks of the first requests: they fill the server's header table
	repeated [][]byte // header blocks of all other requests, again and again
	decoder  *hpack.Decoder
	payload  *payload
	request  []byte // the payload, with this call's numbers
	random   *rand.Rand
	pairs    pairs
	inFlight int

	sent     map[uint32]sent
	window   int // bytes that the server still accepts
	received int // bytes received since the last window update

	status   string // gRPC status, from the trailers that are being read
	message  string
	answered int64
	latency  *hdrhistogram.Histogram
}

func dial(ctx context.Context, address string, encryption *tls.Config, inFlight int, p *payload,
	seed uint64) (*connection, error) {
	connect := new(net.Dialer).DialContext
	if encryption != nil {
		connect = (&tls.Dialer{Config: encryption}).DialContext
	}
	conn, err := connect(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &connection{
		conn:     conn,
		in:       bufio.NewReaderSize(conn, 64<<10),
		out:      bufio.NewWriterSize(conn, 64<<10),
		payload:  p,
		request:  bytes.Clone(p.message),
		random:   rand.New(rand.NewPCG(seed, 1)),
		inFlight: inFlight,
		sent:     make(map[uint32]sent, inFlight),
		window:   defaultWindow,
	}
	c.pairs.init(p)
	c.Client = http2test.New(c.out, c.in)
	c.SetReuseFrames()
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		switch f.Name {
		case "grpc-status":
			c.status = f.Value
		case "grpc-message":
			c.message = f.Value
		}
	})
	c.encodeHeaders(address)
	if err := c.open(); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("open an HTTP/2 connection: %w", err)
	}
	return c, nil
}

const path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

func (c *connection) encodeHeaders(authority string) {
	if c.payload.envoy {
		c.first, c.repeated = envoytest.Calls(c.payload.tracing, path, authority)
		return
	}
	fields := http2test.Fields(path, append([]string{":authority", authority, "user-agent", "ratelimitd-bench"},
		c.payload.headers...)...)
	c.first, c.repeated = [][]byte{c.Encode(fields...)}, [][]byte{c.Encode(fields...)}
}

// block is the header block of the next request.
func (c *connection) block() []byte {
	made := int(c.Stream+1) / 2
	if made < len(c.first) {
		return c.first[made]
	}
	return c.repeated[(made-len(c.first))%len(c.repeated)]
}

func (c *connection) open() error {
	if err := c.Greet(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
	); err != nil {
		return err
	}
	if err := c.WriteWindowUpdate(0, connectionWindow-defaultWindow); err != nil {
		return err
	}
	return c.out.Flush()
}

// run keeps calls in flight until the deadline, and returns when the last one is answered.
func (c *connection) run(until time.Time) error {
	c.answered, c.latency = 0, newHistogram()
	running := true
	for {
		for running && len(c.sent) < c.inFlight && c.window >= c.largest() {
			if err := c.send(); err != nil {
				return err
			}
		}
		if len(c.sent) == 0 && !running {
			return nil
		}
		if err := c.out.Flush(); err != nil {
			return err
		}
		// All frames that are buffered are handled before the next flush, so that writes are batched.
		for first := true; first || c.framed(); first = false {
			if err := c.receive(); err != nil {
				return err
			}
		}
		running = running && time.Now().Before(until)
	}
}

func (c *connection) send() error { return c.sendDue(time.Now()) }

// sendDue sends a call that was due at a time. Its latency counts from then, so the wait to send it is part of it.
func (c *connection) sendDue(due time.Time) error {
	if err := c.Begin(c.block()); err != nil {
		return err
	}
	message, s := c.draw()
	if err := c.WriteData(c.Stream, true, message); err != nil {
		return err
	}
	c.window -= len(message)
	s.due = due
	c.sent[c.Stream] = s
	return nil
}

// framed reports whether a whole frame has been read from the socket.
func (c *connection) framed() bool {
	const head = 9
	if c.in.Buffered() < head {
		return false
	}
	h, err := c.in.Peek(head)
	return err == nil && c.in.Buffered() >= head+int(h[0])<<16+int(h[1])<<8+int(h[2])
}

// receive reads one frame and handles it.
func (c *connection) receive() error {
	frame, err := c.ReadFrame()
	if err != nil {
		return fmt.Errorf("read a frame: %w", err)
	}
	switch f := frame.(type) {
	case *http2.DataFrame:
		if err := checkAnswer(f.Data()); err != nil {
			return err
		}
		return c.enlarge(int(f.Length))
	case *http2.HeadersFrame:
		return c.receiveHeaders(f)
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.window += int(f.Increment)
		}
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("the server reset a call: %v", f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server closes the connection: %v %s", f.ErrCode, f.DebugData())
	}
	return nil
}

// checkAnswer checks that an answer allows the request. The overall code is the first field of the message. An answer
// in several frames is an error.
func checkAnswer(data []byte) error {
	const frame, tag, ok = 5, 0x08, 1
	if len(data) < frame+2 || data[frame] != tag || data[frame+1] != ok {
		return fmt.Errorf("the answer is not OK: %x", data)
	}
	return nil
}

// enlarge gives the server its window back once half of it is used.
func (c *connection) enlarge(n int) error {
	c.received += n
	if c.received < connectionWindow/2 {
		return nil
	}
	n, c.received = c.received, 0
	return c.WriteWindowUpdate(0, uint32(n))
}

func (c *connection) receiveHeaders(f *http2.HeadersFrame) error {
	if !f.HeadersEnded() {
		return errors.New("the server sent headers in several frames")
	}
	c.status, c.message = "", ""
	if _, err := c.decoder.Write(f.HeaderBlockFragment()); err != nil {
		return fmt.Errorf("decode headers: %w", err)
	}
	if err := c.decoder.Close(); err != nil {
		return fmt.Errorf("decode headers: %w", err)
	}
	if !f.StreamEnded() {
		return nil
	}
	if c.status != "0" {
		return fmt.Errorf("a call ended with gRPC status %q: %s", c.status, c.message)
	}
	s, known := c.sent[f.StreamID]
	if !known {
		return fmt.Errorf("the server ended call %d, which is not in flight", f.StreamID)
	}
	delete(c.sent, f.StreamID)
	c.answered++
	c.pairs.answered(s)
	return c.latency.RecordValue(max(1, time.Since(s.due).Microseconds()))
}
