package transport

import (
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// listenUnix returns a listener without port numbers, which a fuzzer would use up.
func listenUnix(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dialUnix(t testing.TB, l net.Listener, settings ...http2.Setting) *rawClient {
	t.Helper()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return rawOn(t, conn, settings...)
}

// callBlock is a header block of a call, without the dynamic table.
func callBlock(extra ...string) []byte { return encode(callFields(extra...)...) }

// frames turns any bytes into HTTP/2 frames: kind, flags, stream, length, content. A kind below 10 is the type of the
// frame. 10 to 19 is the header block of a call, 20 to 29 the header block of another request, 30 to 39 a whole
// message.
func frames(in []byte) []byte {
	var out []byte
	for len(in) >= 4 && len(out) < 1<<20 {
		kind, flags, id, n := in[0], http2.Flags(in[1]), uint32(in[2]), int(in[3])
		in = in[4:]
		n = min(n, len(in))
		content := in[:n]
		in = in[n:]
		if id == 255 {
			id = 1<<31 - 1
		}
		switch {
		case kind < 10:
		case kind < 20:
			kind, content = byte(http2.FrameHeaders), callBlock()
		case kind < 30:
			kind, content = byte(http2.FrameHeaders), callBlock(":path", "/other")
		case kind < 40:
			kind, content = byte(http2.FrameData), message(content)
		case kind < 50:
			kind, content = byte(http2.FrameWindowUpdate), binary.BigEndian.AppendUint32(nil, uint32(n)<<(kind%40*3))
		}
		out = append(appendFrame(out, http2.FrameType(kind), flags, id, len(content)), content...)
	}
	return out
}

// FuzzFrames sends any frames to a server. The server keeps working: the connection ends or answers a ping, no call
// stays in flight, and other connections are served.
func FuzzFrames(f *testing.F) {
	const h, d, m, p = byte(http2.FrameHeaders), byte(http2.FrameData), byte(http2.FrameSettings), byte(http2.FramePing)
	for _, seed := range [][]byte{
		{10, 4, 1, 0, 30, 1, 1, 2, 'h', 'i'},                           // a call
		{10, 4, 1, 0, 30, 1, 1, 1, 'a', 10, 4, 3, 0, 30, 1, 3, 1, 'b'}, // two
		{10, 5, 1, 0}, // without a message
		// another request, one with a body
		{20, 5, 1, 0, 20, 4, 3, 0, d, 1, 3, 2, 'x', 'y'},
		{10, 4, 1, 0, 3, 0, 1, 4, 0, 0, 0, 8, 30, 1, 1, 0},                                      // reset
		{10, 4, 1, 0, 30, 1, 1, 0, 3, 0, 1, 4, 0, 0, 0, 8},                                      // reset when complete
		{m, 0, 0, 6, 0, 4, 0, 0, 0, 0, 10, 4, 1, 0, 30, 1, 1, 1, 'a', 40, 0, 1, 20},             // windows
		{m, 0, 0, 6, 0, 1, 0, 0, 0, 0, 10, 4, 1, 0, 30, 1, 1, 1, 'a', m, 1, 0, 0},               // table size
		{p, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, p, 1, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8},                // pings
		{10, 0, 1, 0, 9, 0, 1, 0, 9, 4, 1, 0, 30, 1, 1, 0},                                      // CONTINUATION
		{10, 4, 1, 0, 30, 0, 1, 1, 'a', h, 5, 1, 0},                                             // trailers
		{10, 4, 1, 0, 30, 0, 1, 1, 'a', d, 1, 1, 0},                                             // an empty last frame
		{10, 4, 1, 0, d, 9, 1, 9, 3, 0, 0, 0, 0, 0, 0, 0, 0},                                    // padding
		{h, 5, 1, 3, 0x82, 0x86, 0x84, h, 5, 3, 3, 0x82, 0x86, 0x84, 2, 0, 1, 5, 0, 0, 0, 3, 1}, // indexed fields, PRIORITY
		{7, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 10, 4, 1, 0, 30, 1, 1, 0},                          // GOAWAY
		{10, 4, 1, 0, d, 1, 1, 5, 0, 255, 255, 255, 255, 10, 4, 3, 0, d, 1, 3, 5, 2, 0, 0, 0, 0},
		{10, 4, 255, 0, 30, 1, 255, 0, 99, 0, 0, 3, 1, 2, 3},
	} {
		f.Add(seed)
	}
	l := listenUnix(f)
	calls := newCalls(f, 64)
	s := startOn(f, l, handlerFunc(func(_ time.Time, calls []*Call) {
		for i, call := range calls {
			switch (len(call.Message) + i) % 3 {
			case 0:
				call.Reply(echoed(call.Message))
			case 1:
				call.Fail(3, "no")
			default:
				go call.Reply(echoed(call.Message))
			}
		}
	}), func(o *Options) { o.Calls, o.MaxStreams, o.MaxMessageBytes = calls, 50, 1<<16 })
	f.Fuzz(func(t *testing.T, in []byte) {
		c := dialUnix(t, l)
		c.write(frames(in))
		data := [8]byte{'e', 'n', 'd'}
		c.ok(c.fr.WritePing(false, data))
		for alive := true; alive; {
			if err := c.read(); err != nil {
				if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
					t.Fatalf("the server neither answers nor closes the connection")
				}
				break
			}
			if n := len(c.seen); n > 0 {
				last := c.seen[n-1]
				alive = last.kind != http2.FrameGoAway && (last.kind != http2.FramePing || last.ping != data)
			}
		}
		_ = c.conn.Close()
		for began := time.Now(); calls.InFlight() > 0 || s.openConns() > 0; runtime.Gosched() {
			if time.Since(began) > patience {
				t.Fatalf("%d calls and %d connections are left", calls.InFlight(), s.openConns())
			}
		}
		other := dialUnix(t, l)
		if a := other.wait(other.begin([]byte("xxx"))); a.field("grpc-status") != "0" {
			t.Fatalf("another client gets %v", a)
		}
		_ = other.conn.Close()
	})
}

func (s *Server) openConns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// FuzzCalls turns any bytes into calls, and sends them to this package's server and to grpc-go. The status of every
// stream must be the same. Only if bytes follow the first message, the codes of the rejections may differ: grpc-go
// decodes them as a second message, which may be too large.
func FuzzCalls(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{1, 0, 2, 3, 'a', 'b', 'c', 2, 1, 1, 2, 'h', 'i', 3, 0, 0, 1, 'x'})
	f.Add([]byte{0, 1, 3, 10, 0, 0, 0, 0, 5, 'h', 'e', 'l', 'l', 'o'})
	f.Add([]byte{0, 0, 4, 6, 0, 0, 0, 0, 1, 'x', 0, 2, 0, 5, 'f', 'a', 'i', 'l', ' '})
	f.Add([]byte{1, 0, 1, 4, 'z', 'i', 'p', 's', 1, 16, 4, 3, 1, 2, 3, 0, 64, 0, 4, 'f', 'o', 'u', 'r'})
	// The second message announces 808,464,432 bytes.
	f.Add([]byte("\x04\x01\x03\x30\x00\x00\x00\x00\x0500000000000"))
	encodings := []string{"", "gzip", "identity", "snappy"}
	timeouts := []string{"", "1H", "99999999S", "1", "1X", "-1S", "123456789S"}
	grpcGo, lean := startBoth(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		ask := func(addr string) (outcomes []string) {
			c := rawDial(t, addr)
			defer c.conn.Close()
			var ids []uint32
			var several []bool // whether bytes follow the first message, by call
			for rest := in; len(rest) >= 4 && len(ids) < 8; {
				encoding, how, kind, n := encodings[rest[0]%4], rest[1], rest[2], min(int(rest[3]), len(rest)-4)
				body := rest[4 : 4+n]
				rest = rest[4+n:]
				switch kind % 5 {
				case 0:
					body = message(body)
				case 1:
					packed := gzipped(body)
					body = flagged(1, len(packed), packed)
				case 2:
					body = append(message(body), message(body)...)
				case 3: // unchanged
				case 4:
					body = flagged(flagOf(body), n, body)
				}
				var extra []string
				if encoding != "" {
					extra = append(extra, "grpc-encoding", encoding)
				}
				if timeout := timeouts[int(in[0]/4)%len(timeouts)]; timeout != "" {
					extra = append(extra, "grpc-timeout", timeout)
				}
				id := c.open(false, extra...)
				several = append(several, len(body) > prefixSize && len(body)-prefixSize > int(binary.BigEndian.Uint32(body[1:])))
				switch how % 4 {
				case 0:
					c.data(id, true, body)
				case 1:
					for len(body) > 1 {
						c.data(id, false, body[:1])
						body = body[1:]
					}
					c.data(id, true, body)
				case 2:
					c.data(id, false, body)
					c.data(id, true, nil)
				case 3:
					c.ok(c.fr.WriteDataPadded(id, true, body, make([]byte, how)))
				}
				ids = append(ids, id)
			}
			for i, id := range ids {
				outcome := c.wait(id).outcome()
				if several[i] && outcome == codes.ResourceExhausted.String() {
					outcome = codes.Internal.String()
				}
				outcomes = append(outcomes, outcome)
			}
			return outcomes
		}
		want, got := ask(grpcGo), ask(lean)
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("call %d: lean %s, grpc-go %s", i, got[i], want[i])
			}
		}
	})
}

// flagOf is the flag of a message: by its first byte.
func flagOf(body []byte) byte {
	if len(body) == 0 {
		return 0
	}
	return body[0] % 4
}
