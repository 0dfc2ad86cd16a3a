package transport

import (
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// steady is a client without cost: its requests are encoded beforehand, as Envoy does it, and answers are only counted.
type steady struct {
	conn    net.Conn
	blocks  [][]byte
	made    int // calls with these blocks
	next    uint32
	out, in []byte
}

func newSteady(tb testing.TB, addr string, tracing envoytest.Tracing) *steady {
	c := rawDial(tb, addr)
	first, repeated := envoytest.Calls(tracing, echoPath, "test")
	for _, block := range first {
		c.ok(c.fr.WriteBlock(c.next, false, block))
		c.data(c.next, true, message(nil))
		if a := c.wait(c.next); a.field("grpc-status") != "0" {
			tb.Fatal(a)
		}
		c.next += 2
	}
	c.ok(c.fr.WriteWindowUpdate(0, 1<<30))
	c.roundTrip()
	_ = c.conn.SetDeadline(time.Time{})
	return &steady{conn: c.conn, blocks: repeated, next: c.next, in: make([]byte, 64<<10)}
}

var steadyMessage [50]byte

// calls sends n calls together, and reads their answers.
func (s *steady) calls(n int) error {
	s.out = s.out[:0]
	const size = len(steadyMessage)
	for range n {
		block := s.blocks[s.made%len(s.blocks)]
		s.made++
		s.out = append(appendFrame(s.out, http2.FrameHeaders, http2.FlagHeadersEndHeaders, s.next, len(block)), block...)
		s.out = append(appendFrame(s.out, http2.FrameData, http2.FlagDataEndStream, s.next, prefixSize+size), 0, 0, 0, 0, byte(size))
		s.out = append(s.out, steadyMessage[:]...)
		s.next += 2
	}
	if _, err := s.conn.Write(s.out); err != nil {
		return err
	}
	answer := 3*frameHeader + len(answerBlock) + len(trailerBlock) + prefixSize + size
	for want := n * answer; want > 0; {
		got, err := s.conn.Read(s.in[:min(len(s.in), want)])
		if err != nil {
			return err
		}
		want -= got
	}
	return nil
}

// A call needs no allocation once a connection is warm.
func TestACallAllocatesNothing(t *testing.T) {
	if racetest.On {
		t.Skip("allocations cannot be counted")
	}
	later := make(chan *Call, 1024)
	defer close(later)
	go func() {
		for call := range later {
			call.Reply((*again)(call))
		}
	}()
	for name, h := range map[string]Handler{
		"at once": atOnce,
		"later": handlerFunc(func(_ time.Time, calls []*Call) {
			for _, call := range calls {
				later <- call
			}
		}),
	} {
		for batch, tracing := range map[int]envoytest.Tracing{1: envoytest.Untraced, 15: envoytest.OpenTelemetry, 16: envoytest.Zipkin} {
			t.Run(fmt.Sprintf("%s, %d together, %s", name, batch, tracing), func(t *testing.T) {
				addr, _ := start(t, h, nil)
				c := newSteady(t, addr, tracing)
				run := func(n int) {
					for range n / batch {
						if err := c.calls(batch); err != nil {
							t.Fatal(err)
						}
					}
				}
				run(2_000)
				least := 1.0
				for range 3 { // other work of the process allocates too
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					run(20_000)
					runtime.ReadMemStats(&after)
					least = min(least, float64(after.Mallocs-before.Mallocs)/20_000)
				}
				if least >= 0.01 {
					t.Errorf("%.3f allocations per call", least)
				}
			})
		}
	}
}

// again is a call that is answered with its message.
type again Call

// AppendTo implements Message.
func (a *again) AppendTo(b []byte) []byte { return append(b, a.Message...) }

// atOnce is echo without its allocation.
var atOnce = handlerFunc(func(_ time.Time, calls []*Call) {
	for _, call := range calls {
		call.Reply((*again)(call))
	}
})

// Blocks with the same bytes mean the same only while the table is the same.
func TestABlockIsDecodedAgainWhenTheTableChanges(t *testing.T) {
	addr, _ := start(t, handlerFunc(func(_ time.Time, calls []*Call) {
		for _, call := range calls {
			call.Reply(echoed(call.Header("color")))
		}
	}), func(o *Options) { o.Wanted = []string{"color"} })
	c := rawDial(t, addr)
	color := func(fields []hpack.HeaderField, block []byte) (string, []byte) {
		if block == nil {
			block = c.fr.Encode(fields...)
		}
		id := c.next
		c.next += 2
		c.ok(c.fr.WriteBlock(id, false, block))
		c.data(id, true, message(nil))
		a := c.wait(id)
		if a.field("grpc-status") != "0" {
			t.Fatalf("%v", a)
		}
		return string(a.data[prefixSize:]), block
	}
	expect := func(got string, want string) {
		t.Helper()
		if got != want {
			t.Fatalf("color %q, want %q", got, want)
		}
	}
	fields := append(callFields(), hpack.HeaderField{Name: "color", Value: "red"})
	got, _ := color(fields, nil)
	expect(got, "red")
	for range 3 {
		var block []byte
		got, block = color(fields, nil)
		expect(got, "red")
		got, _ = color(nil, block)
		expect(got, "red")
	}
	// A new entry moves all others by one: the last reference now means the previous entry.
	_, block := color(fields, nil)
	last := block[len(block)-1]
	if last != 0x80|62 {
		t.Fatalf("the newest entry is %x", last)
	}
	got, _ = color(append(callFields(), hpack.HeaderField{Name: "color", Value: "blue"}), nil)
	expect(got, "blue")
	got, _ = color(nil, c.fr.Encode(append(callFields(), hpack.HeaderField{Name: "color", Value: "blue"})...))
	expect(got, "blue")
	got, _ = color(fields, nil)
	expect(got, "red")
}

// BenchmarkCalls sends calls in batches, like Envoy.
func BenchmarkCalls(b *testing.B) {
	for _, batch := range []int{1, 16} {
		for _, tracing := range envoytest.Tracings {
			b.Run(fmt.Sprintf("%d/%s", batch, tracing), func(b *testing.B) {
				addr, _ := start(b, atOnce, nil)
				c := newSteady(b, addr, tracing)
				b.ReportAllocs()
				b.ResetTimer()
				for n := 0; n < b.N; n += batch {
					if err := c.calls(batch); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
