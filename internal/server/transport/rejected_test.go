package transport

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// Frames that a client has sent for a call before it learns that the call is rejected are ignored, however many calls
// are rejected.
func TestFramesOfRejectedCalls(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"too many calls":   func(o *Options) { o.Calls = newCalls(t, 0) },
		"too many streams": func(o *Options) { o.MaxStreams = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			addr, _ := start(t, hold(), change)
			c := rawDial(t, addr)
			c.begin(nil) // uses the stream
			c.roundTrip()
			for range 2_000 {
				id := c.open(false)
				c.data(id, false, message([]byte("x")))
				c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fr.Encode(hpack.HeaderField{Name: "sum", Value: "1"}), EndHeaders: true, EndStream: true}))
				if a := c.wait(id); a.reset != nil && *a.reset != http2.ErrCodeNo && *a.reset != http2.ErrCodeRefusedStream {
					t.Fatalf("%v", a)
				}
			}
			c.roundTrip()
			for id, a := range c.answers {
				if a.reset != nil && *a.reset != http2.ErrCodeNo && *a.reset != http2.ErrCodeRefusedStream {
					t.Fatalf("stream %d: reset %v", id, *a.reset)
				}
			}
		})
	}
}

// A request with an incomplete header block does not delay the calls before it.
func TestCallBeforeAnIncompleteBlock(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := rawDial(t, addr)
	c.roundTrip()
	var sent bytes.Buffer
	all := http2.NewFramer(&sent, nil)
	c.ok(all.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fr.Encode(callFields()...), EndHeaders: true}))
	c.ok(all.WriteData(1, true, message(nil)))
	block := c.fr.Encode(callFields()...)
	c.ok(all.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block[:1]}))
	c.write(sent.Bytes())
	if a := c.wait(1); a.field("grpc-status") != "0" {
		t.Errorf("%v", a)
	}
	c.ok(c.fr.WriteContinuation(3, true, block[1:]))
	c.data(3, true, message(nil))
	if a := c.wait(3); a.field("grpc-status") != "0" {
		t.Errorf("%v", a)
	}
}

// A second header block with pseudo fields ends its stream, even if the block is known from an earlier request.
func TestSecondHeadersOfARequest(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := rawDial(t, addr)
	for range 3 { // then the block has references only, and is remembered
		c.echo(nil)
	}
	id := c.open(false)
	c.next = id
	c.open(true)
	if a := c.wait(id); a.reset == nil {
		t.Errorf("%v", a)
	}
	c.echo(nil)
}

// In a flood of rejected calls, the answers cost the most: an answer without a message needs no memory.
func TestAStatusAllocatesNothing(t *testing.T) {
	if racetest.On {
		t.Skip("allocations cannot be counted")
	}
	var c conn
	if n := testing.AllocsPerRun(100, func() {
		c.out = c.out[:0]
		c.appendStatus(1, false, codes.ResourceExhausted, tooManyCalls, "")
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Errors of any length and any text reach the client.
func TestTextsOfErrors(t *testing.T) {
	for _, n := range []int{0, 1, 126, 127, 128, 254, 255, 300, 20_000} {
		text := strings.Repeat("x", n)
		addr, _ := start(t, handlerFunc(func(_ time.Time, calls []*Call) {
			for _, call := range calls {
				call.Fail(codes.NotFound, text)
			}
		}), nil)
		c := rawDial(t, addr)
		if a := c.wait(c.begin(nil)); a.field("grpc-status") != "5" || a.field("grpc-message") != text || a.field("content-type") != "application/grpc" {
			t.Errorf("%d bytes: %v", n, a)
		}
	}
}
