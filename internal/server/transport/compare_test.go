package transport

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // the service registers it too
	"google.golang.org/grpc/status"
)

// echoService is the tests' method on grpc-go.
var echoService = grpc.ServiceDesc{
	ServiceName: "test.Echo", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true, Handler: func(
		_ any, stream grpc.ServerStream,
	) error {
		for {
			var message []byte
			if err := stream.RecvMsg(&message); err != nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
			if text, fails := bytes.CutPrefix(message, []byte("fail ")); fails {
				return status.Error(codes.FailedPrecondition, string(text))
			}
			if err := stream.SendMsg(&message); err != nil {
				return err
			}
		}
	}}},
	Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var message []byte
		if err := decode(&message); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		if text, fails := bytes.CutPrefix(message, []byte("fail ")); fails {
			return nil, status.Error(codes.FailedPrecondition, string(text))
		}
		return &message, nil
	}}},
}

// leanHandle is the same method as echoService.
func leanHandle(_ time.Time, calls []*Call) {
	for _, call := range calls {
		if err := call.Err(); err != nil {
			st := status.FromContextError(err)
			call.Fail(st.Code(), st.Message())
		} else if text, fails := bytes.CutPrefix(call.Message, []byte("fail ")); fails {
			call.Fail(codes.FailedPrecondition, string(text))
		} else {
			call.Reply(echoed(call.Message))
		}
	}
}

// leanStream is the stream of echoService.
func leanStream(s *Stream) error {
	for {
		message, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if text, fails := bytes.CutPrefix(message, []byte("fail ")); fails {
			return status.Error(codes.FailedPrecondition, string(text))
		}
		if err := s.Send(message); err != nil {
			return err
		}
	}
}

const streamPath = "/test.Echo/Stream"

const comparedMax = 256 << 10 // the largest message of both servers

// startBoth starts the methods on grpc-go, and on this package.
func startBoth(t testing.TB) (grpcGo, lean string) {
	t.Helper()
	opts := []grpc.ServerOption{grpc.ForceServerCodec(bytesCodec{}), grpc.MaxRecvMsgSize(comparedMax), grpc.MaxHeaderListSize(256 << 10), grpc.MaxConcurrentStreams(1000), grpc.StaticConnWindowSize(1 << 20), grpc.StaticStreamWindowSize(1 << 20)}
	g := grpc.NewServer(opts...)
	g.RegisterService(&echoService, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	startOn(t, at, handlerFunc(leanHandle), func(o *Options) {
		o.Streams, o.MaxMessageBytes = map[string]*StreamMethod{streamPath: {Serve: leanStream}}, comparedMax
	})
	return l.Addr().String(), at.Addr().String()
}

func gzipped(p []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(p)
	_ = w.Close()
	return b.Bytes()
}

// flagged is a message with any flag and length in its prefix.
func flagged(flag byte, size int, p []byte) []byte {
	m := append(message(nil), p...)
	m[0], m[1], m[2], m[3], m[4] = flag, byte(size>>24), byte(size>>16), byte(size>>8), byte(size)
	return m
}

// comparison is a request that both servers get.
type comparison struct {
	name string
	send func(c *rawClient) uint32

	// lean is this package's answer where it differs from grpc-go's on purpose; why is the reason.
	lean, why string
}

// sending is a call with these bytes as its body.
func sending(body []byte, extra ...string) func(*rawClient) uint32 {
	return func(c *rawClient) uint32 {
		id := c.open(false, extra...)
		rest := body
		for len(rest) > maxFrame {
			c.data(id, false, rest[:maxFrame])
			rest = rest[maxFrame:]
		}
		c.data(id, true, rest)
		return id
	}
}

// withFields is a call with these header fields.
func withFields(change func([]hpack.HeaderField) []hpack.HeaderField) func(*rawClient) uint32 {
	return func(c *rawClient) uint32 {
		id := c.openFields(false, change(callFields()))
		c.data(id, true, message([]byte("x")))
		return id
	}
}

func comparisons() []comparison {
	all := []comparison{
		{name: "a call", send: sending(message([]byte("hello")))},
		{name: "an empty message", send: sending(message(nil))},
		{name: "an error", send: sending(message([]byte("fail plain text")))},
		{name: "an error with any bytes", send: sending(message([]byte("fail 100% \n\r\t ü \x7f \x00 ~")))},
		{name: "an error without text", send: sending(message([]byte("fail ")))},
		{name: "in one byte per frame", send: func(c *rawClient) uint32 {
			id := c.open(false)
			m := message([]byte("hello"))
			for i := range m {
				c.data(id, i == len(m)-1, m[i:i+1])
			}
			return id
		}},
		{name: "with padding", send: func(c *rawClient) uint32 {
			id := c.open(false)
			c.ok(c.fr.WriteDataPadded(id, true, message([]byte("hello")), make([]byte, 255)))
			return id
		}},
		{name: "ended by an empty frame", send: func(c *rawClient) uint32 {
			id := c.open(false)
			c.data(id, false, message([]byte("hello")))
			c.data(id, true, nil)
			return id
		}},
		{name: "no message", send: func(c *rawClient) uint32 { return c.open(true) }},
		{name: "an empty body", send: sending(nil)},
		{name: "half a prefix", send: sending([]byte{0, 0, 0})},
		{name: "a truncated message", send: sending(flagged(0, 10, []byte("hello")))},
		{name: "a prefix alone", send: sending(flagged(0, 10, nil))},
		{name: "two messages", send: sending(append(message([]byte("one")), message([]byte("two"))...))},
		{name: "two empty messages", send: sending(append(message(nil), message(nil)...))},
		{name: "a message and half a prefix", send: sending(append(message([]byte("one")), 0, 0))},
		{name: "a message and a truncated one", send: sending(append(message([]byte("one")), flagged(0, 10, []byte("x"))...))},
		{name: "the largest message", send: sending(message(make([]byte, comparedMax)))},
		{name: "too large a message", send: sending(message(make([]byte, comparedMax+1)))},
		{name: "a message that says it is huge", send: sending(flagged(0, math.MaxUint32, []byte("x")))},
		{name: "a message that says it is huge, and does not end", send: func(c *rawClient) uint32 {
			id := c.open(false)
			c.data(id, false, flagged(0, math.MaxUint32, []byte("x")))
			return id
		}},
		{name: "gzip", send: sending(flagged(1, len(gzipped([]byte("hello"))), gzipped([]byte("hello"))), "grpc-encoding", "gzip")},
		{name: "gzip, not compressed", send: sending(message([]byte("hello")), "grpc-encoding", "gzip")},
		{name: "gzip of nothing", send: sending(flagged(1, 0, nil), "grpc-encoding", "gzip")},
		{name: "gzip of too much", send: sending(flagged(1, len(gzipped(make([]byte, comparedMax+1))), gzipped(make([]byte, comparedMax+1))), "grpc-encoding", "gzip")},
		{name: "gzip of as much as there may be", send: sending(flagged(1, len(gzipped(make([]byte, comparedMax))), gzipped(make([]byte, comparedMax))), "grpc-encoding", "gzip")},
		{name: "bytes that are no gzip", send: sending(flagged(1, 5, []byte("hello")), "grpc-encoding", "gzip")},
		{name: "truncated gzip", send: sending(flagged(1, 15, gzipped([]byte("hello"))[:15]), "grpc-encoding", "gzip")},
		{name: "identity", send: sending(message([]byte("hello")), "grpc-encoding", "identity")},
		{name: "identity, compressed", send: sending(flagged(1, 5, []byte("hello")), "grpc-encoding", "identity")},
		{name: "compressed with nothing", send: sending(flagged(1, 5, []byte("hello")))},
		{name: "an unknown encoding", send: sending(flagged(1, 5, []byte("hello")), "grpc-encoding", "snappy")},
		{name: "an unknown encoding, not compressed", send: sending(message([]byte("hello")), "grpc-encoding", "snappy")},
		{name: "an unknown encoding, no message", send: func(c *rawClient) uint32 { return c.open(true, "grpc-encoding", "snappy") }},
		{name: "an unknown flag", send: sending(flagged(2, 5, []byte("hello")))},
		{name: "an unknown flag, gzip", send: sending(flagged(255, 5, []byte("hello")), "grpc-encoding", "gzip")},
		{lean: "OK", why: "grpc-go takes trailers for an error; RFC 9113 allows them", name: "trailers", send: func(c *rawClient) uint32 {
			id := c.open(false)
			c.data(id, false, message([]byte("hello")))
			c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fr.Encode(hpack.HeaderField{Name: "some", Value: "trailer"}), EndHeaders: true, EndStream: true}))
			return id
		}},
		{name: "another method", send: sending(message(nil), ":path", "/test.Echo/Other")},
		{name: "another service", send: sending(message(nil), ":path", "/test.Other/Echo")},
		{name: "a path without a slash", send: sending(message(nil), ":path", "test.Echo/Echo")},
		{name: "a path with a query", send: sending(message(nil), ":path", echoPath+"?x=1")},
		{name: "GET", send: sending(message(nil), ":method", "GET")},
		{lean: "Unknown", why: "an HTTP error without a gRPC status", name: "another content type", send: sending(message(nil), "content-type", "text/plain")},
		{name: "gRPC's content type with a codec", send: sending(message([]byte("x")), "content-type", "application/grpc+proto")},
		{name: "gRPC's content type with a parameter", send: sending(message([]byte("x")), "content-type", "application/grpc;charset=utf-8")},
		{name: "gRPC's content type with an unknown codec", send: sending(message([]byte("x")), "content-type", "application/grpc+thrift")},
		{lean: "Unknown", why: "an HTTP error without a gRPC status", name: "gRPC-Web", send: sending(message([]byte("x")), "content-type", "application/grpc-web")},
		{name: "no te", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField { return without(f, "te") })},
		{lean: "Unknown", why: "an HTTP error without a gRPC status", name: "no content type", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField { return without(f, "content-type") })},
		{name: "no authority", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField { return without(f, ":authority") })},
		{name: "host and no authority", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField {
			return append(without(f, ":authority"), hpack.HeaderField{Name: "host", Value: "test"})
		})},
		{name: "host and authority", send: sending(message([]byte("x")), "host", "other")},
		{name: "host twice", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField {
			return append(f, hpack.HeaderField{Name: "host", Value: "a"}, hpack.HeaderField{Name: "host", Value: "b"})
		})},
		{name: "connection", send: sending(message([]byte("x")), "connection", "close")},
		{name: "a name in capitals", send: sending(message([]byte("x")), "Some", "thing")},
		{lean: "reset PROTOCOL_ERROR", why: "malformed, by RFC 9113, section 8.3.1", name: "no method", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField { return without(f, ":method") })},
		{lean: "reset PROTOCOL_ERROR", why: "malformed, by RFC 9113, section 8.3.1", name: "no path", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField { return without(f, ":path") })},
		{lean: "reset PROTOCOL_ERROR", why: "malformed, by RFC 9113, section 8.3.1", name: "no scheme", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField { return without(f, ":scheme") })},
		{name: "path twice", send: withFields(func(f []hpack.HeaderField) []hpack.HeaderField {
			return append([]hpack.HeaderField{{Name: ":path", Value: echoPath}}, f...)
		})},
		{name: "binary metadata", send: sending(message([]byte("x")), "some-bin", "AAEC")},
		{name: "binary metadata that is not base64", send: sending(message([]byte("x")), "some-bin", "!")},
		{name: "content-length", send: sending(message([]byte("x")), "content-length", "6")},
		{lean: "reset PROTOCOL_ERROR", why: "malformed, by RFC 9113, section 8.1.1", name: "too small a content-length", send: sending(message([]byte("x")), "content-length", "5")},
		{lean: "reset PROTOCOL_ERROR", why: "malformed, by RFC 9113, section 8.1.1", name: "too large a content-length", send: sending(message([]byte("x")), "content-length", "7")},
		{name: "headers that are too long", send: sending(message([]byte("x")), "long", string(bytes.Repeat([]byte("x"), 200<<10)), "long2", string(bytes.Repeat([]byte("x"), 100<<10)))},
		{name: "a call that the client resets and that never ends", send: func(c *rawClient) uint32 {
			c.ok(c.fr.WriteRSTStream(c.open(false), http2.ErrCodeCancel))
			return c.begin([]byte("the next"))
		}},
	}
	for _, timeout := range []string{
		"1H", "1M", "5S", "5000m", "5000000u", "99999999n", "99999999H", "99999999S", "0S", "0n", "1n", "00000001H",
		"", "1", "S", "1X", "1s", "1h", "-1S", "+1S", " 1S", "1 S", "1.5S", "123456789S", "123456789", "0x1S", "1SS", "１S",
	} {
		c := comparison{name: fmt.Sprintf("grpc-timeout %q", timeout), send: sending(message([]byte("x")), "grpc-timeout", timeout)}
		all = append(all, c)
	}
	return all
}

// Answers to requests are those of grpc-go, apart from the differences named here.
func TestAnswersAreThoseOfGRPC(t *testing.T) {
	grpcGo, lean := startBoth(t)
	all := comparisons()
	for _, test := range comparisons() {
		if c, ok := test.streaming(); ok {
			all = append(all, c)
		}
	}
	for _, test := range all {
		t.Run(test.name, func(t *testing.T) {
			ask := func(addr string) (string, *rawAnswer) {
				c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
				c.ok(c.fr.WriteWindowUpdate(0, 1<<20))
				id := test.send(c)
				for !c.done(id) {
					if c.read() != nil {
						return "the connection ends", nil
					}
				}
				c.next = 1001
				c.echo([]byte("the connection is fine"))
				return c.answers[id].outcome(), c.answers[id]
			}
			want, a := ask(grpcGo)
			got, b := ask(lean)
			t.Logf("grpc-go: %v, lean: %v", a, b)
			switch {
			case test.lean == "" && got != want:
				t.Errorf("\n got %s (%v)\nwant %s (%v)", got, b, want, a)
			case test.lean != "" && got == want:
				t.Errorf("there is no difference any more: %s", got)
			case test.lean != "" && got != test.lean:
				t.Errorf("got %s (%v), want %s, because: %s", got, b, test.lean, test.why)
			case test.lean == "" && got != "Internal" && a.field("grpc-message") != b.field("grpc-message"):
				// INTERNAL has our own text
				t.Errorf("\n got %v\nwant %v", b, a)
			case got == "OK" && test.why == "" && a.field("grpc-encoding") == "" && !bytes.Equal(a.data, b.data):
				t.Errorf("\n got %x\nwant %x", b.data, a.data)
			}
		})
	}
}

// streaming returns the same request for the stream. It returns false if streams differ on purpose.
func (c comparison) streaming() (_ comparison, ok bool) {
	send := c.send
	switch c.name {
	case "another method", "another service", "a path without a slash", "a path with a query", "path twice":
		return c, false
	}
	c.name = "stream: " + c.name
	c.send = func(r *rawClient) uint32 {
		r.path = streamPath
		defer func() { r.path = "" }()
		return send(r)
	}
	return c, true
}
