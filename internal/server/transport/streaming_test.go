package transport

import (
	"bytes"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// Streams count as calls in flight, so that their number is bounded.
func TestStreamsAreBounded(t *testing.T) {
	const most = 8
	let := make(chan struct{})
	calls := newCalls(t, most)
	addr, _ := start(t, echo{}, func(o *Options) {
		o.Calls = calls
		waiting(let)(o)
	})
	c := rawDial(t, addr)
	for range most {
		c.open(false, ":path", otherPath)
	}
	if a := c.wait(c.open(true, ":path", otherPath)); a.field("grpc-status") != "8" {
		t.Errorf("one too many: %v", a)
	}
	if n := calls.InFlight(); n != most {
		t.Errorf("%d calls in flight, want %d", n, most)
	}
	c.ok(c.fr.WriteRSTStream(1, http2.ErrCodeCancel))
	close(let)
	for i := range uint32(most - 1) {
		c.wait(2*i + 3)
	}
	for calls.InFlight() > 0 {
		c.roundTrip()
	}
	c.echo(nil)
}

// A stream stops counting as in flight before the client has its whole answer. Otherwise the next call of a client at
// its bound could be rejected.
func TestAnsweredStreamIsNotInFlight(t *testing.T) {
	addr, _ := start(t, echo{}, func(o *Options) {
		o.Calls = newCalls(t, 1)
		streams(repeats)(o)
	})
	c := rawDial(t, addr)
	for n := range 1000 {
		if a := c.wait(c.begin([]byte("x"), ":path", otherPath)); a.field("grpc-status") != "0" {
			t.Fatalf("call %d: %v", n, a)
		}
	}
}

// Streams take turns with large and with compressed messages, like connections. Small ones do not wait for that.
func TestStreamsTakeTurns(t *testing.T) {
	addr, s := start(t, echo{}, streams(repeats))
	for range cap(s.large) {
		s.large <- struct{}{}
	}
	c := rawDial(t, addr)
	large := c.begin(make([]byte, largeMessage+1), ":path", otherPath)
	packed := c.open(false, ":path", otherPath, "grpc-encoding", "gzip")
	c.data(packed, true, flagged(1, len(gzipped([]byte("x"))), gzipped([]byte("x"))))
	for range 20 {
		if a := c.wait(c.begin([]byte("small"), ":path", otherPath)); a.field("grpc-status") != "0" {
			t.Fatal(a)
		}
	}
	if c.done(large) || c.done(packed) {
		t.Error("a message did not wait for its turn")
	}
	for range cap(s.large) {
		<-s.large
	}
	c.ok(c.fr.WriteWindowUpdate(large, 1<<20))
	c.ok(c.fr.WriteWindowUpdate(0, 1<<20))
	for _, id := range []uint32{large, packed} {
		if a := c.wait(id); a.field("grpc-status") != "0" {
			t.Error(a)
		}
	}
}

// A call with binary metadata, as tracing libraries send it, is a normal call of the method. If a value is not base64,
// the answer is an error.
func TestBinaryMetadata(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := rawDial(t, addr)
	for _, value := range []string{"", "AAEC", "AAE=", "AAE"} {
		c.echo(nil, "grpc-trace-bin", value)
	}
	if a := c.wait(c.begin(nil, "grpc-trace-bin", "!")); a.field("grpc-status") == "0" {
		t.Errorf("%v", a)
	}
}

// A stream that its method admits does not count as a call in flight. The function from Admit is called at its end,
// however it ends.
func TestAdmittedStreams(t *testing.T) {
	const most = 12
	calls, let := newCalls(t, 4), make(chan struct{})
	var open atomic.Int64
	addr, _ := start(t, echo{}, func(o *Options) {
		o.Calls = calls
		waiting(let)(o)
		o.Streams[otherPath].Admit = func(*intake.Conn) (func(), string) {
			if open.Add(1) > most {
				open.Add(-1)
				return nil, "too many streams"
			}
			return func() { open.Add(-1) }, ""
		}
	})
	c := rawDial(t, addr)
	for range most {
		c.open(false, ":path", otherPath)
	}
	if a := c.wait(c.open(false, ":path", otherPath)); a.field("grpc-status") != "8" || a.field("grpc-message") != "too many streams" {
		t.Error(a)
	}
	if n, in := open.Load(), calls.InFlight(); n != most || in != 0 {
		t.Errorf("%d streams are open, %d calls in flight", n, in)
	}
	c.echo(nil)
	for i := range uint32(most / 2) {
		c.ok(c.fr.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
	}
	close(let)
	for open.Load() != 0 {
		c.roundTrip()
	}
}

// A request that is not a call is answered when all of it has arrived, and uses almost no memory until then.
func TestRequestsThatAreNoCalls(t *testing.T) {
	b := startBounded(t, echo{}, 64<<20, 64<<20, nil)
	c := rawDial(t, b.addr)
	for method, want := range map[string]string{"POST": "415", "GET": "405", "HEAD": "405", "PUT": "405"} {
		id := c.open(false, ":path", "/upload", "content-type", "text/plain", ":method", method)
		for range 40 {
			c.data(id, false, make([]byte, maxFrame)) // more than the windows: credit is returned
			c.roundTrip()
		}
		b.holds(t, declinedSize)
		c.data(id, true, nil)
		a := c.wait(id)
		if text := string(a.data); a.field(":status") != want || (text != notGRPC) != (method == "HEAD") {
			t.Errorf("%s: %v %q", method, a, text)
		}
	}
	b.holds(t, 0)
	c.echo(nil)
	for name, fields := range map[string][2]string{
		"GET": {":method", "GET"}, "a timeout": {"grpc-timeout", "soon"}, "metadata": {"x-bin", "!"},
	} {
		if a := c.wait(c.open(false, fields[0], fields[1])); a.field("grpc-status") != "13" || a.field("grpc-message") == "" {
			t.Errorf("%s: %v", name, a)
		}
	}
	for path, message := range map[string]string{
		"/test.Echo/Nothing": "unknown method Nothing for service test.Echo",
		"/a.B/C":             "unknown service a.B", "/x": `malformed method name: "/x"`,
	} {
		if a := c.wait(c.open(false, ":path", path)); a.field("grpc-status") != "12" || a.field("grpc-message") != message {
			t.Errorf("%s: %v", path, a)
		}
	}
}

// Received and unreceived data of a stream count by their memory, until the client gives up.
func TestStreamsCountWhatTheyKeep(t *testing.T) {
	const part = 100_000
	b := startBounded(t, echo{}, 64<<20, 64<<20, streams(func(s *Stream) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}))
	c := rawDial(t, b.addr)
	id := c.open(false, ":path", otherPath)
	for range 4 {
		rest := message(make([]byte, part))
		for ; len(rest) > maxFrame; rest = rest[maxFrame:] {
			c.data(id, false, rest[:maxFrame])
		}
		c.data(id, false, rest)
	}
	c.roundTrip()
	for until := time.Now().Add(patience); b.bytes.Held() < streamSize+4*part; <-time.After(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d bytes are held", b.bytes.Held())
		}
	}
	if n := b.bytes.Held(); n > streamSize+4*part+8*maxChunk {
		t.Errorf("%d bytes are held", n)
	}
	c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
	b.holds(t, 0)
}

// A stream whose method panics ends with INTERNAL. A stream with a partly sent message is reset.
func TestStreamsThatFail(t *testing.T) {
	var path atomic.Value
	addr, _ := start(t, echo{}, func(o *Options) {
		streams(func(s *Stream) error {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			if string(m) == "panic" {
				panic("kaboom")
			}
			go s.Interrupt(status.Error(codes.Unavailable, "stopping"))
			return s.Send(make([]byte, 100_000))
		})(o)
		o.Panicked = func(p any, at string) error {
			path.Store(at + " " + p.(string))
			return status.Error(codes.Internal, "panicked")
		}
	})
	c := rawDial(t, addr)
	if a := c.wait(c.begin([]byte("panic"), ":path", otherPath)); a.field("grpc-status") != "13" || path.Load() != otherPath+" kaboom" {
		t.Error(a, path.Load())
	}
	a := c.wait(c.begin([]byte("send"), ":path", otherPath)) // the window has room for two thirds
	whole := a.field("grpc-status") == "14"
	if whole != (len(a.data) == 0) || !whole && (a.reset == nil || *a.reset != http2.ErrCodeInternal) {
		t.Errorf("%v, %d bytes", a, len(a.data))
	}
	c.ok(c.fr.WriteWindowUpdate(0, 1<<20))
	c.echo(nil)
}

// A stream may end while its large message waits for its turn.
func TestStreamEndsBeforeItsTurn(t *testing.T) {
	var panics atomic.Int64
	addr, s := start(t, echo{}, func(o *Options) {
		streams(repeats)(o)
		o.Panicked = func(any, string) error { panics.Add(1); return status.Error(codes.Internal, "panicked") }
	})
	c := rawDial(t, addr)
	for range 20 {
		for range cap(s.large) {
			s.large <- struct{}{}
		}
		id := c.begin(make([]byte, largeMessage+1), ":path", otherPath)
		c.roundTrip()
		c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
		c.roundTrip()
		for range cap(s.large) {
			<-s.large
		}
	}
	c.echo(nil)
	if n := panics.Load(); n > 0 {
		t.Errorf("%d panics", n)
	}
}

// A client that compresses its messages receives long ones compressed.
func TestStreamsCompress(t *testing.T) {
	addr, _ := start(t, echo{}, streams(repeats))
	c := rawDial(t, addr)
	for _, size := range []int{10, 50_000} {
		plain := bytes.Repeat([]byte("0123456789"), size/10)
		id := c.open(false, ":path", otherPath, "grpc-encoding", "gzip")
		c.data(id, true, flagged(1, len(gzipped(plain)), gzipped(plain)))
		a := c.wait(id)
		if a.field("grpc-encoding") != "gzip" || a.field("grpc-status") != "0" {
			t.Fatal(a)
		}
		got := a.data[prefixSize:]
		if zipped := a.data[0] == 1; zipped != (size >= minCompressed) {
			t.Errorf("a message of %d bytes is compressed: %t", size, zipped)
		} else if zipped {
			got, _, _ = Unzip(got, size)
		}
		if !bytes.Equal(got, plain) {
			t.Errorf("%d bytes, want %d", len(got), len(plain))
		}
	}
}

// A stream ends at the deadline of its call, even while it waits.
func TestStreamDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := startOn(t, l, echo{}, streams(repeats))
		c := rawOn(t, l.dial())
		_ = c.conn.SetDeadline(time.Time{})
		if a := c.wait(c.open(false, ":path", otherPath, "grpc-timeout", "1H")); a.field("grpc-status") != "4" {
			t.Error(a)
		}
		s.Close()
	})
}
