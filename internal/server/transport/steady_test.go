package transport

import (
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// steady is a client that costs nothing: what it sends is encoded beforehand, as Envoy 1.40 does it from its second call on, and what it
// gets is only counted.
type steady struct {
	conn    net.Conn
	block   []byte
	next    uint32
	out, in []byte
}

func newSteady(tb testing.TB, addr string) *steady {
	c := rawDial(tb, addr)
	extra := []string{"grpc-timeout", "100m", "x-envoy-internal", "true", "x-forwarded-for", "192.0.2.2", "x-envoy-expected-rq-timeout-ms", "100"}
	c.echo(make([]byte, 50), extra...) // fills the table
	block := c.envoyBlock(callFields(extra...)...)
	if !keepsTable(block) {
		tb.Fatalf("the block %x changes the table", block)
	}
	c.ok(c.fr.WriteWindowUpdate(0, 1<<30))
	c.roundTrip()
	_ = c.conn.SetDeadline(time.Time{})
	return &steady{conn: c.conn, block: block, next: c.next, in: make([]byte, 64<<10)}
}

// envoyBlock encodes fields as Envoy does: the path is a literal that is not indexed, on every call.
func (c *rawClient) envoyBlock(fields ...hpack.HeaderField) (block []byte) {
	for _, f := range fields {
		if f.Name != ":path" {
			block = append(block, c.block(f)...)
			continue
		}
		const notIndexed, path, huffman = 0, 4, 0x80
		block = append(block, notIndexed|path, huffman|byte(hpack.HuffmanEncodeLength(f.Value)))
		block = hpack.AppendHuffmanString(block, f.Value)
	}
	return block
}

var steadyMessage [50]byte

// calls makes n calls at once.
func (s *steady) calls(n int) error {
	s.out = s.out[:0]
	const size = len(steadyMessage)
	for range n {
		s.out = append(appendFrame(s.out, http2.FrameHeaders, http2.FlagHeadersEndHeaders, s.next, len(s.block)), s.block...)
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

// A call costs no allocation once a connection is warm.
func TestACallAllocatesNothing(t *testing.T) {
	if raceDetector {
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
		for _, batch := range []int{1, 16} {
			t.Run(fmt.Sprintf("%s, %d together", name, batch), func(t *testing.T) {
				addr, _ := start(t, h, nil)
				c := newSteady(t, addr)
				run := func(n int) {
					for range n / batch {
						if err := c.calls(batch); err != nil {
							t.Fatal(err)
						}
					}
				}
				run(2_000)
				least := 1.0
				for range 3 { // whatever else the process does costs allocations too
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
	}), nil)
	c := rawDial(t, addr)
	color := func(fields []hpack.HeaderField, block []byte) (string, []byte) {
		if block == nil {
			block = c.block(fields...)
		}
		id := c.next
		c.next += 2
		c.writeBlock(id, false, block)
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
		if !keepsTable(block) {
			t.Fatal("the block changes the table")
		}
		got, _ = color(nil, block)
		expect(got, "red")
	}
	// A new entry moves all others by one: the last reference now means the entry before.
	_, block := color(fields, nil)
	last := block[len(block)-1]
	if last != 0x80|62 {
		t.Fatalf("the newest entry is %x", last)
	}
	got, _ = color(append(callFields(), hpack.HeaderField{Name: "color", Value: "blue"}), nil)
	expect(got, "blue")
	got, _ = color(nil, c.block(append(callFields(), hpack.HeaderField{Name: "color", Value: "blue"})...))
	expect(got, "blue")
	got, _ = color(fields, nil)
	expect(got, "red")
}

// A block of many references is not remembered: its fields would take hundreds of times its size.
func TestABlockOfManyFieldsIsNotRemembered(t *testing.T) {
	var r headerReader
	r.init(echoPath, nil, 256<<10)
	for n, want := range map[int]bool{maxCachedFields: true, maxCachedFields + 1: false} {
		h := &head{fields: make([]hpack.HeaderField, n)}
		r.remember(nil, nil)
		r.remember([]byte{0x82}, h)
		if found := r.find([]byte{0x82}) != nil; found != want || h.shared != want {
			t.Errorf("a block of %d fields: found %t, shared %t, want %t", n, found, h.shared, want)
		}
	}
}

// BenchmarkCalls makes calls in batches as Envoy does.
func BenchmarkCalls(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			addr, _ := start(b, atOnce, nil)
			c := newSteady(b, addr)
			b.ReportAllocs()
			for n := 0; n < b.N; n += batch {
				if err := c.calls(batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
