package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

// patience is the longest wait for an expected event.
const patience = 20 * time.Second

// rawClient speaks HTTP/2 frame by frame, including frames that libraries never send.
type rawClient struct {
	path string // path of calls instead of the echo's; may be empty

	t    testing.TB
	conn net.Conn
	fr   *http2test.Client
	dec  *hpack.Decoder
	next uint32 // id of the next stream

	pings uint64 // number of sent pings
	deaf  bool   // pings are not answered

	answers map[uint32]*rawAnswer
	seen    []event
}

// rawAnswer collects the frames of a stream.
type rawAnswer struct {
	fields []hpack.HeaderField // header and trailer fields
	blocks [][]byte            // encoded header blocks
	data   []byte
	ended  bool
	reset  *http2.ErrCode
}

// event is a frame outside of streams.
type event struct {
	kind    http2.FrameType
	ack     bool
	ping    [8]byte
	stream  uint32 // stream of a credit, or last stream of a GOAWAY
	n       uint32 // size of a credit
	code    http2.ErrCode
	debug   string
	setting map[http2.SettingID]uint32
}

func (a *rawAnswer) field(name string) string {
	if a == nil {
		return ""
	}
	for _, f := range a.fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// outcome returns a gRPC client's view of an answer: the status, or how the stream was reset.
func (a *rawAnswer) outcome() string {
	if a.reset != nil && a.field(":status") == "" {
		return "reset " + a.reset.String()
	}
	if s := a.field("grpc-status"); s != "" {
		n, _ := strconv.Atoi(s)
		return codes.Code(n).String()
	}
	switch a.field(":status") { // gRPC's "HTTP to gRPC Status Code Mapping"
	case "400":
		return codes.Internal.String()
	case "401":
		return codes.Unauthenticated.String()
	case "403":
		return codes.PermissionDenied.String()
	case "404":
		return codes.Unimplemented.String()
	case "429", "502", "503", "504":
		return codes.Unavailable.String()
	}
	return codes.Unknown.String()
}

// String describes the end of the stream and its content, in one line.
func (a *rawAnswer) String() string {
	switch {
	case a == nil:
		return "nothing"
	case a.reset != nil && a.field("grpc-status") == "":
		return "reset " + a.reset.String()
	}
	s := "http " + a.field(":status") + " grpc " + a.field("grpc-status")
	if m := a.field("grpc-message"); m != "" {
		s += " " + m
	}
	return s
}

// rawDial connects, and sends the preface.
func rawDial(t testing.TB, addr string, settings ...http2.Setting) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return rawOn(t, conn, settings...)
}

func rawOn(t testing.TB, conn net.Conn, settings ...http2.Setting) *rawClient {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	c := &rawClient{t: t, conn: conn, fr: http2test.New(conn, conn), next: 1, answers: make(map[uint32]*rawAnswer)}
	c.fr.SetMaxReadFrameSize(1 << 24)
	c.dec = hpack.NewDecoder(4096, nil)
	_ = conn.SetDeadline(time.Now().Add(patience))
	c.ok(c.fr.Greet(settings...))
	return c
}

// write sends bytes unchanged. Later answers show whether the server still reads them.
func (c *rawClient) write(p []byte) { _, _ = c.conn.Write(p) }

// ok ignores errors of a connection that the server has closed.
func (c *rawClient) ok(err error) {
	if _, gone := errors.AsType[net.Error](err); err != nil && !gone && !errors.Is(err, io.ErrClosedPipe) {
		c.t.Helper()
		c.t.Fatal(err)
	}
}

// callFields are the header fields of a call. An extra field replaces the field with the same name.
func callFields(extra ...string) []hpack.HeaderField { return http2test.Fields(echoPath, extra...) }

// without removes a field.
func without(fields []hpack.HeaderField, name string) []hpack.HeaderField {
	return slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return f.Name == name })
}

// open starts a call, and returns its stream.
func (c *rawClient) open(end bool, extra ...string) uint32 {
	c.t.Helper()
	return c.openFields(end, callFields(extra...))
}

func (c *rawClient) openFields(end bool, fields []hpack.HeaderField) uint32 {
	c.t.Helper()
	id := c.next
	c.next += 2
	if c.path != "" {
		for i, f := range fields {
			if f.Name == ":path" && f.Value == echoPath {
				fields[i].Value = c.path
			}
		}
	}
	c.ok(c.fr.WriteBlock(id, end, c.fr.Encode(fields...)))
	return id
}

func (c *rawClient) data(id uint32, end bool, p []byte) {
	c.t.Helper()
	c.ok(c.fr.WriteBody(id, end, p))
}

// message returns a message with gRPC's prefix.
func message(p []byte) []byte { return http2test.Message(len(p), p) }

// begin sends a whole call.
func (c *rawClient) begin(p []byte, extra ...string) uint32 {
	c.t.Helper()
	id := c.open(false, extra...)
	c.data(id, true, message(p))
	return id
}

func (c *rawClient) answer(id uint32) *rawAnswer {
	a := c.answers[id]
	if a == nil {
		a = new(rawAnswer)
		c.answers[id] = a
	}
	return a
}

// read reads one frame. Settings are acknowledged, and pings answered.
func (c *rawClient) read() error {
	f, err := c.fr.ReadFrame()
	if err != nil {
		return err
	}
	e := event{kind: f.Header().Type}
	switch f := f.(type) {
	case *http2.HeadersFrame:
		block := bytes.Clone(f.HeaderBlockFragment())
		ended := f.StreamEnded()
		for more := f.HeadersEnded(); !more; {
			g, err := c.fr.ReadFrame()
			if err != nil {
				return err
			}
			cont, ok := g.(*http2.ContinuationFrame)
			if !ok {
				return fmt.Errorf("%v within a header block", g.Header())
			}
			block = append(block, cont.HeaderBlockFragment()...)
			more = cont.HeadersEnded()
		}
		fields, err := c.dec.DecodeFull(block)
		if err != nil {
			return err
		}
		a := c.answer(f.StreamID)
		if a.ended || a.reset != nil {
			return fmt.Errorf("HEADERS on the closed stream %d", f.StreamID)
		}
		a.blocks, a.fields, a.ended = append(a.blocks, block), append(a.fields, fields...), ended
		return nil
	case *http2.DataFrame:
		a := c.answer(f.StreamID)
		if a.ended || a.reset != nil {
			return fmt.Errorf("DATA on the closed stream %d", f.StreamID)
		}
		a.data, a.ended = append(a.data, f.Data()...), f.StreamEnded()
		return nil
	case *http2.RSTStreamFrame:
		code := f.ErrCode
		if a := c.answer(f.StreamID); a.reset == nil {
			a.reset = &code
		}
		return nil
	case *http2.SettingsFrame:
		e.ack = f.IsAck()
		e.setting = make(map[http2.SettingID]uint32)
		_ = f.ForeachSetting(func(s http2.Setting) error { e.setting[s.ID] = s.Val; return nil })
		if !e.ack {
			c.ok(c.fr.WriteSettingsAck())
		}
	case *http2.PingFrame:
		e.ack, e.ping = f.IsAck(), f.Data
		if !e.ack && !c.deaf {
			c.ok(c.fr.WritePing(true, f.Data))
		}
	case *http2.WindowUpdateFrame:
		e.stream, e.n = f.StreamID, f.Increment
	case *http2.GoAwayFrame:
		e.stream, e.code, e.debug = f.LastStreamID, f.ErrCode, string(f.DebugData())
	}
	c.seen = append(c.seen, e)
	return nil
}

// until reads frames until done.
func (c *rawClient) until(what string, done func() bool) {
	c.t.Helper()
	for !done() {
		if err := c.read(); err != nil {
			c.t.Fatalf("waiting for %s: %v; so far %+v", what, err, c.seen)
		}
	}
}

// done reports whether a stream is closed.
func (c *rawClient) done(id uint32) bool {
	a := c.answers[id]
	return a != nil && (a.ended || a.reset != nil)
}

// wait reads until a stream is closed.
func (c *rawClient) wait(id uint32) *rawAnswer {
	c.t.Helper()
	c.until(fmt.Sprintf("an answer on stream %d", id), func() bool { return c.done(id) })
	return c.answers[id]
}

// echo sends a call that must succeed.
func (c *rawClient) echo(p []byte, extra ...string) {
	c.t.Helper()
	a := c.wait(c.begin(p, extra...))
	if a.field("grpc-status") != "0" || !bytes.Equal(a.data, message(p)) {
		c.t.Fatalf("%d bytes: answer %v with %d bytes", len(p), a, len(a.data))
	}
	c.ok(c.fr.WriteWindowUpdate(0, uint32(len(a.data))))
}

// roundTrip sends a PING and reads until it is answered, twice. Everything sent before is then handled, and answered
// unless the answer waits. A single PING is not enough: calls that arrive with it are handled after it.
func (c *rawClient) roundTrip() {
	c.t.Helper()
	for range 2 {
		c.pings++
		data := [8]byte(binary.BigEndian.AppendUint64(nil, c.pings))
		c.ok(c.fr.WritePing(false, data))
		c.until("the answer to a ping", func() bool {
			return slices.ContainsFunc(c.seen, func(e event) bool { return e.kind == http2.FramePing && e.ack && e.ping == data })
		})
	}
}

// goAways reads until the connection ends, and returns the GOAWAY frames.
func (c *rawClient) goAways() []event {
	c.t.Helper()
	for {
		err := c.read()
		if err == nil {
			continue
		}
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			c.t.Fatalf("the connection is not closed; so far %+v", c.seen)
		}
		break
	}
	var all []event
	for _, e := range c.seen {
		if e.kind == http2.FrameGoAway {
			all = append(all, e)
		}
	}
	return all
}

// ends expects a GOAWAY with this code, and the end of the connection.
func (c *rawClient) ends(code http2.ErrCode) event {
	c.t.Helper()
	all := c.goAways()
	if len(all) == 0 || all[len(all)-1].code != code {
		c.t.Fatalf("GOAWAY %+v, want %v", all, code)
	}
	return all[len(all)-1]
}

// handlerFunc is a Handler.
type handlerFunc func(now time.Time, calls []*Call)

func (f handlerFunc) Handle(now time.Time, calls []*Call) { f(now, calls) }

// holding is a Handler that leaves its calls to the test.
type holding chan *Call

func (h holding) Handle(_ time.Time, calls []*Call) {
	for _, c := range calls {
		h <- c
	}
}

func hold() holding { return make(holding, 10_000) }

func (h holding) take(t testing.TB) *Call {
	t.Helper()
	select {
	case c := <-h:
		return c
	case <-time.After(patience):
		t.Fatal("no call arrived")
		return nil
	}
}

// pipes is a listener whose connections stay in memory, for tests with a virtual clock.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// dial returns a client's end of a new connection.
func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// otherPath is the path of a method that is a StreamMethod in some tests.
const otherPath = "/test.Long/Stream"

// streams sets this function as the method at otherPath.
func streams(serve func(*Stream) error) func(*Options) {
	return func(o *Options) { o.Streams = map[string]*StreamMethod{otherPath: {Serve: serve}} }
}

// waiting is a method that answers when let is closed, or when the client gives up.
func waiting(let <-chan struct{}) func(*Options) {
	return streams(func(s *Stream) error {
		select {
		case <-let:
		case <-s.Context().Done():
		}
		return nil
	})
}

// repeats is a method that answers each message with the same message.
func repeats(s *Stream) error {
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.Send(m)
		}
		if err != nil {
			return err
		}
	}
}
