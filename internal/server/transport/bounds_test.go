package transport

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

// bounded is a server whose connections are bounded.
type bounded struct {
	addr     string
	server   *Server
	bytes    *intake.Bytes
	registry *prometheus.Registry
}

func startBounded(t testing.TB, h Handler, connection, all int64, change func(*Options)) *bounded {
	t.Helper()
	b := &bounded{bytes: intake.NewBytes(connection, intake.NewBudget(all).Class("test", 0)), registry: prometheus.NewRegistry()}
	m, err := intake.NewMetrics(b.registry)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = raw.Addr().String()
	b.server = startOn(t, intake.Listen(raw, intake.Options{Name: "test", Bytes: b.bytes, Metrics: m}), h, change)
	return b
}

// closed is how many connections were closed for a reason.
func (b *bounded) closed(t testing.TB, reason string) float64 {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "ratelimitd_connections_closed_total" && l.GetName() == "reason" && l.GetValue() == reason {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

// holds waits until the memory of the open connections is n bytes.
func (b *bounded) holds(t testing.TB, want int64) {
	t.Helper()
	got := int64(-1)
	for until := time.Now().Add(patience); time.Now().Before(until) && got != want; <-time.After(time.Millisecond) {
		b.server.mu.Lock()
		conns := b.server.open()
		b.server.mu.Unlock()
		got = 0
		for _, c := range conns {
			c.mu.Lock()
			got += c.held
			c.mu.Unlock()
		}
	}
	if got != want {
		t.Errorf("the connections hold %d bytes, want %d", got, want)
	}
}

func zipped(t testing.TB, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{1}, uint32(b.Len())), b.Bytes()...)
}

// ended waits until the connection is closed, and fails if it is not.
func (c *rawClient) ended() {
	c.t.Helper()
	if _, err := io.Copy(io.Discard, c.conn); errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatal("the connection stays open")
	}
}

// All memory for clients counts, on one connection and on all.
func TestHeldBytesAreBounded(t *testing.T) {
	const bound = 1 << 20
	noWindow := http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}
	long := strings.Repeat("v", 100_000)
	for name, hostile := range map[string]struct {
		handler  Handler
		settings []http2.Setting
		more     func(c *rawClient, i int) // uses at least 10 KB more
	}{
		"messages that do not end": {echo{}, nil, func(c *rawClient, i int) {
			if i%100 == 0 {
				c.open(false)
				c.data(c.next-2, false, binary.BigEndian.AppendUint32([]byte{0}, 4<<20-1))
			}
			c.data(c.next-2, false, make([]byte, 10_000))
		}},
		"header fields that the handler wants": {echo{}, nil, func(c *rawClient, _ int) { c.open(false, "wanted", long) }},
		"header blocks that do not end": {echo{}, nil, func(c *rawClient, i int) {
			if i%20 == 0 {
				c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 16_000)}))
			} else {
				c.ok(c.fr.WriteContinuation(1, false, make([]byte, 16_000)))
			}
		}},
		"answers without a window": {echo{}, []http2.Setting{noWindow}, func(c *rawClient, _ int) { c.begin(make([]byte, 10_000)) }},
		"messages that were compressed": {hold(), nil, func(c *rawClient, _ int) {
			c.data(c.open(false, "grpc-encoding", "gzip"), true, zipped(c.t, make([]byte, 100_000)))
		}},
	} {
		for of, bounds := range map[string][2]int64{"a connection": {bound, 1 << 40}, "all": {1 << 40, bound}} {
			t.Run(name+", of "+of, func(t *testing.T) {
				if name == "answers without a window" && of == "a connection" || name == "header blocks that do not end" {
					bounds[0], bounds[1] = bounds[0]/8, bounds[1]/8 // a smaller bound applies
				}
				b := startBounded(t, hostile.handler, bounds[0], bounds[1], func(o *Options) { o.Wanted = []string{"wanted"} })
				for range 10 {
					c := rawDial(t, b.addr, hostile.settings...)
					gone := make(chan struct{})
					go func() {
						defer close(gone)
						c.ended()
					}()
					for i := range 15 {
						hostile.more(c, i)
					}
					if of == "a connection" {
						for i := 15; i < 110 && b.closed(t, "bytes") == 0; i++ {
							hostile.more(c, i)
						}
						<-gone
						break
					}
				}
				for until := time.Now().Add(patience); b.closed(t, "bytes") == 0; <-time.After(time.Millisecond) {
					if time.Now().After(until) {
						t.Fatal("no connection was closed")
					}
				}
				most := int64(bound)
				// the handler keeps the calls that arrived before the connection was closed
				if name == "messages that were compressed" {
					most *= 3
				}
				for until := time.Now().Add(patience); b.bytes.Held() > most; <-time.After(time.Millisecond) {
					if time.Now().After(until) {
						t.Fatalf("%d bytes are held", b.bytes.Held())
					}
				}
			})
		}
	}
}

// A stream without room is rejected immediately, and uses no memory. The connection stays open.
func TestStreamsNeedRoom(t *testing.T) {
	for of, bounds := range map[string][2]int64{"a connection": {1 << 20, 1 << 40}, "all": {1 << 40, 1 << 20}} {
		t.Run(of, func(t *testing.T) {
			let := make(chan struct{})
			b := startBounded(t, echo{}, bounds[0], bounds[1], waiting(let))
			defer close(let)
			c := rawDial(t, b.addr)
			var last uint32
			for range 1<<20/streamSize + 1 {
				last = c.open(false, ":path", otherPath)
			}
			if a := c.wait(last); a.field("grpc-status") != "8" || a.field("grpc-message") != noRoom {
				t.Errorf("the last one: %v", a)
			}
			if n := b.bytes.Held(); n < 1<<19 || n > 1<<20 {
				t.Errorf("%d bytes are held", n)
			}
			c.echo([]byte("after"))
			if n := b.closed(t, "bytes"); n != 0 {
				t.Errorf("%v connections were closed", n)
			}
		})
	}
}

// Only a few connections at a time decode large or compressed messages. Small messages do not wait for that.
func TestFewDecodeLargeMessages(t *testing.T) {
	for name, m := range map[string][]byte{"large": message(make([]byte, 2*largeMessage)), "compressed": zipped(t, make([]byte, 2*largeMessage))} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const clients = 20
				in, most, let := 0, 0, make(chan struct{}, clients)
				var mu sync.Mutex
				count := func(n int) {
					mu.Lock()
					defer mu.Unlock()
					in += n
					most = max(most, in)
				}
				l := newPipes()
				s := startOn(t, l, handlerFunc(func(now time.Time, calls []*Call) {
					if len(calls[0].Message) > largeMessage {
						count(1)
						<-let
						count(-1)
					}
					echo{}.Handle(now, calls)
				}), nil)
				var all []*rawClient
				for range clients {
					c := rawOn(t, l.dial(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
					c.ok(c.fr.WriteWindowUpdate(0, 1<<20))
					c.data(c.open(false, "grpc-encoding", "gzip"), true, m)
					all = append(all, c)
				}
				synctest.Wait()
				rawOn(t, l.dial()).echo([]byte("small"))
				for range clients {
					let <- struct{}{}
				}
				for _, c := range all {
					c.wait(1)
				}
				if most != cap(s.large) {
					t.Errorf("%d connections decoded at a time, want %d", most, cap(s.large))
				}
			})
		})
	}
}

// Unread answers that the kernel does not accept count as memory of the client.
func TestUnreadAnswersCount(t *testing.T) {
	b := startBounded(t, echo{}, 1<<40, 8<<10, nil)
	c := rawDial(t, b.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	c.ok(c.fr.WriteWindowUpdate(0, 1<<30))
	for i := range 10_000 {
		c.begin(make([]byte, 10_000))
		if i%100 == 0 && b.closed(t, "bytes") > 0 {
			return
		}
	}
	t.Error("the connection stays open")
}

// After every kind of use, no memory is counted.
func TestNothingIsHeldInTheEnd(t *testing.T) {
	waiting := hold()
	b := startBounded(t, handlerFunc(func(now time.Time, calls []*Call) {
		for _, call := range calls {
			if call.Header("wait") != "" {
				waiting <- call
			} else {
				echo{}.Handle(now, []*Call{call})
			}
		}
	}), 64<<20, 64<<20, func(o *Options) { o.MaxMessageBytes, o.Wanted = 1<<20, []string{"wait"} })
	c := rawDial(t, b.addr)
	c.ok(c.fr.WriteWindowUpdate(0, 1<<30))

	c.echo([]byte("small"))
	big := bytes.Repeat([]byte("0123456789"), 50_000)
	id := c.open(false)
	c.ok(c.fr.WriteWindowUpdate(id, 1<<30))
	for p := message(big); len(p) > 0; p = p[min(len(p), 7_000):] {
		c.data(id, len(p) <= 7_000, p[:min(len(p), 7_000)])
	}
	if a := c.wait(id); !bytes.Equal(a.data, message(big)) {
		t.Fatalf("a long message came back as %d bytes", len(a.data))
	}
	id = c.open(false, "grpc-encoding", "gzip")
	c.data(id, true, zipped(t, big[:60_000]))
	if a := c.wait(id); !bytes.Equal(a.data, message(big[:60_000])) {
		t.Fatalf("a compressed message came back as %d bytes", len(a.data))
	}
	id = c.open(false, "grpc-encoding", "gzip")
	c.data(id, true, zipped(t, make([]byte, 2<<20)))
	if a := c.wait(id); a.field("grpc-status") != "8" {
		t.Errorf("too long when decompressed: %v", a)
	}
	b.holds(t, 0)

	for name, reset := range map[string]func(){
		"before its message": func() { c.ok(c.fr.WriteRSTStream(c.open(false, "x", strings.Repeat("v", 5_000)), http2.ErrCodeCancel)) },
		"within its message": func() {
			id := c.open(false)
			c.data(id, false, message(big)[:16_000])
			c.data(id, false, big[:16_000])
			c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
		},
		"within a request for another handler": func() {
			id := c.open(false, ":path", "/other")
			c.data(id, false, big[:10_000])
			c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
		},
		"at work": func() {
			id := c.begin(big[:10_000], "wait", "yes")
			call := waiting.take(t)
			c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
			c.roundTrip()
			call.Reply(echoed("too late"))
		},
		"by a wrong frame": func() {
			id := c.open(false)
			c.data(id, false, message(big)[:16_000])
			c.ok(c.fr.WriteWindowUpdate(id, 1<<31-1))
			c.wait(id)
		},
		"never, and too long": func() {
			id := c.open(false)
			c.data(id, false, []byte{0, 0xff, 0xff, 0xff, 0xff})
			c.wait(id)
		},
	} {
		reset()
		c.roundTrip()
		t.Log("a call that is reset", name)
		b.holds(t, 0)
	}

	c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	first, second := c.begin(big[:3_000]), c.begin(big[:3_000])
	c.roundTrip()
	const memory = 3 << 10 // memory of 3,005 bytes
	b.holds(t, 2*(memory+blockedOverhead))
	c.ok(c.fr.WriteWindowUpdate(first, 1_000))
	c.roundTrip()
	b.holds(t, 2*(memory+blockedOverhead))
	c.ok(c.fr.WriteWindowUpdate(first, 1<<30))
	c.wait(first)
	c.ok(c.fr.WriteRSTStream(second, http2.ErrCodeCancel))
	b.holds(t, 0)
	if n := b.bytes.Held(); n >= holdStep {
		t.Errorf("the bound counts %d bytes", n)
	}
	_ = c.conn.Close()
	for until := time.Now().Add(patience); b.bytes.Held() != 0; <-time.After(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the bound counts %d bytes of a closed connection", b.bytes.Held())
		}
	}
}

// A client that keeps its windows closed is disconnected, for every kind of answer.
func TestClosedWindowsAreBoundedInTime(t *testing.T) {
	for _, path := range []string{echoPath, otherPath} {
		t.Run(path, func(t *testing.T) {
			b := startBounded(t, echo{}, 1<<40, 1<<40, func(o *Options) {
				o.WriteTimeout = 50 * time.Millisecond
				streams(repeats)(o)
			})
			other := rawDial(t, b.addr)
			c := rawDial(t, b.addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			c.begin(nil, ":path", path)
			c.ended()
			if n := b.closed(t, "not_reading"); n != 1 {
				t.Errorf("%v connections were closed because of that", n)
			}
			other.echo([]byte("after"))
		})
	}
}

// The calls of a connection that ends with an error are no longer in flight, even if the client does not read the
// error.
func TestCallsEndWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, calls := newPipes(), newCalls(t, 100)
		startOn(t, l, echo{}, func(o *Options) { o.Calls = calls })
		c := rawOn(t, l.dial())
		for range 10 {
			c.open(false)
		}
		synctest.Wait()
		if n := calls.InFlight(); n != 10 {
			t.Fatalf("%d calls are in flight", n)
		}
		c.data(0, false, nil) // DATA belongs to a stream
		synctest.Wait()
		if n := calls.InFlight(); n != 0 {
			t.Errorf("%d calls are in flight", n)
		}
	})
}

// Frames that cost the server much more than the client are bounded.
func TestFloods(t *testing.T) {
	settings := make([]http2.Setting, 0, 2_000)
	for i := range cap(settings) {
		settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(65_535 + i%2)})
	}
	for name, flood := range map[string]struct {
		reason string
		most   int // how often it may be sent
		open   int // calls before the flood
		send   func(c *rawClient, i int)
	}{
		"many settings in a frame": {"frames", 1, 0, func(c *rawClient, _ int) { c.ok(c.fr.WriteSettings(settings...)) }},
		"windows of many calls":    {"frames", 50, 500, func(c *rawClient, i int) { c.ok(c.fr.WriteSettings(settings[i%2 : i%2+1]...)) }},
		"references to a long field": {"frames", 200, 0, func(c *rawClient, i int) {
			if i == 0 {
				c.open(false, "x", strings.Repeat("v", 3_900))
				return
			}
			block := http2test.Unindexed(callFields()...)
			block = append(block, bytes.Repeat([]byte{0x80 | 62}, 100)...) // the newest entry of the table
			c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: block, EndHeaders: true}))
			c.next += 2
		}},
		"empty frames of a call": {"frames", 20_000, 1, func(c *rawClient, _ int) { c.data(1, false, nil) }},
		"resets":                 {"frames", 20_000, 1, func(c *rawClient, _ int) { c.ok(c.fr.WriteRSTStream(1, http2.ErrCodeCancel)) }},
		"pings":                  {"pings", 20_000, 0, func(c *rawClient, _ int) { c.ok(c.fr.WritePing(false, [8]byte{})) }},
		"a header block in many frames": {"headers", 200, 0, func(c *rawClient, i int) {
			if i == 0 {
				c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: c.fr.Encode(hpack.HeaderField{Name: "x"})}))
			}
			c.ok(c.fr.WriteContinuation(c.next, false, nil))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBounded(t, echo{}, 1<<40, 1<<40, func(o *Options) { o.MinPingInterval = time.Hour })
			other := rawDial(t, b.addr)
			c := rawDial(t, b.addr)
			for range flood.open {
				c.open(false)
			}
			c.roundTrip()
			go func() {
				for i := range flood.most {
					flood.send(c, i)
				}
			}()
			c.ended()
			if n := b.closed(t, flood.reason); n != 1 {
				t.Errorf("%v connections were closed because of %s", n, flood.reason)
			}
			other.echo([]byte("after"))
		})
	}
}
