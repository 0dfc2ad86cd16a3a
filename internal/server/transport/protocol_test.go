package transport

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// An encoder whose table size is limited to 0 announces that at the start of its next block, once.
func TestTheTableShrinks(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	size := func(n uint32) http2.Setting { return http2.Setting{ID: http2.SettingHeaderTableSize, Val: n} }
	for name, settings := range map[string][]http2.Setting{
		"to nothing": {size(0)}, "to nothing and back": {size(0), size(4096)}, "to a few bytes": {size(100)},
	} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, addr, settings...)
			a := c.wait(c.begin(nil))
			if a.blocks[0][0] != tableIsEmpty || a.blocks[1][0] == tableIsEmpty {
				t.Errorf("blocks %x", a.blocks)
			}
			c.echo([]byte("x"))
			c.ok(c.fr.WriteSettings(size(0)))
			a = c.wait(c.begin(nil, "grpc-encoding", "unknown")) // one block only
			if a.blocks[0][0] != tableIsEmpty || a.field("grpc-status") != "12" {
				t.Errorf("%v, blocks %x", a, a.blocks)
			}
			c.ok(c.fr.WriteSettings(size(0)))
			a = c.wait(c.open(true, ":path", "/other"))
			if a.blocks[0][0] != tableIsEmpty {
				t.Errorf("%v, blocks %x", a, a.blocks)
			}
		})
	}
	for name, n := range map[string]uint32{"as it is": 4096, "longer": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			if a := rawDial(t, addr, size(n)); a.wait(a.begin(nil)).blocks[0][0] == tableIsEmpty {
				t.Error("the table is emptied")
			}
		})
	}
}

func TestSettings(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	s := func(id http2.SettingID, n uint32) http2.Setting { return http2.Setting{ID: id, Val: n} }
	for name, settings := range map[string][]http2.Setting{
		"unknown": {s(0xf00, 1), s(0, 0), s(0xffff, 1<<32-1)},
		"all":     {s(http2.SettingMaxHeaderListSize, 0), s(http2.SettingMaxFrameSize, 1<<24-1), s(http2.SettingInitialWindowSize, 1<<20), s(http2.SettingMaxConcurrentStreams, 0), s(http2.SettingEnablePush, 1), s(http2.SettingHeaderTableSize, 1<<32-1)},
		"twice":   {s(http2.SettingMaxFrameSize, 1<<20), s(http2.SettingMaxFrameSize, 1<<14), s(http2.SettingInitialWindowSize, 0), s(http2.SettingInitialWindowSize, 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, addr, settings...)
			c.echo(make([]byte, 50_000))
		})
	}
	for name, test := range map[string]struct {
		setting http2.Setting
		code    http2.ErrCode
	}{
		"ENABLE_PUSH 2":      {s(http2.SettingEnablePush, 2), http2.ErrCodeProtocol},
		"too large a window": {s(http2.SettingInitialWindowSize, 1<<31), http2.ErrCodeFlowControl},
		"too small a frame":  {s(http2.SettingMaxFrameSize, 1<<14-1), http2.ErrCodeProtocol},
		"too large a frame":  {s(http2.SettingMaxFrameSize, 1<<24), http2.ErrCodeProtocol},
	} {
		t.Run(name, func(t *testing.T) { rawDial(t, addr, test.setting).ends(test.code) })
	}
}

// Frames are as long as the client allows.
func TestFrameSizeOfAnswers(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	for _, size := range []int{1 << 14, 1 << 15, 1 << 18} {
		c := rawDial(t, addr, http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(size)}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		c.ok(c.fr.WriteWindowUpdate(0, 1<<20))
		c.fr.SetMaxReadFrameSize(uint32(size)) // an error otherwise
		c.echo(make([]byte, 100_000))
	}
}

func TestContinuation(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	block := callBlock()
	c := rawDial(t, addr)
	id := c.next
	c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:1]}))
	for i := range maxContinuations {
		part := block[min(i+1, len(block)):min(i+2, len(block))]
		last := i == maxContinuations-1
		if last {
			part = block[min(i+1, len(block)):]
		}
		c.ok(c.fr.WriteContinuation(id, last, part))
	}
	c.data(id, true, message([]byte("x")))
	if a := c.wait(id); a.field("grpc-status") != "0" {
		t.Errorf("%v", a)
	}
	c.next += 2
	c.echo([]byte("x"))

	c = rawDial(t, addr)
	c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: nil}))
	for range maxContinuations + 1 {
		c.ok(c.fr.WriteContinuation(1, false, nil))
	}
	c.ends(http2.ErrCodeEnhanceYourCalm)

	c = rawDial(t, addr)
	c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block}))
	c.data(1, true, nil)
	c.ends(http2.ErrCodeProtocol)
}

// Each state of a stream, and a RST_STREAM, a DATA, a HEADERS or a WINDOW_UPDATE frame in it.
func TestStreamStates(t *testing.T) {
	h := hold()
	addr, _ := start(t, h, nil)
	states := map[string]func(*rawClient) uint32{
		"idle":   func(*rawClient) uint32 { return 7 },
		"open":   func(c *rawClient) uint32 { return c.open(false) },
		"half":   func(c *rawClient) uint32 { id := c.begin(nil); h.take(t); return id },
		"closed": func(c *rawClient) uint32 { id := c.begin(nil); h.take(t).Reply(echoed(nil)); c.wait(id); return id },
		"reset": func(c *rawClient) uint32 {
			id := c.open(false)
			c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
			return id
		},
		"skipped": func(c *rawClient) uint32 { c.next = 9; c.wait(c.open(true)); return 3 },
	}
	frames := map[string]func(*rawClient, uint32){
		"RST_STREAM":    func(c *rawClient, id uint32) { c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel)) },
		"DATA":          func(c *rawClient, id uint32) { c.data(id, false, []byte{0}) },
		"WINDOW_UPDATE": func(c *rawClient, id uint32) { c.ok(c.fr.WriteWindowUpdate(id, 1)) },
		"HEADERS":       func(c *rawClient, id uint32) { c.ok(c.fr.WriteBlock(id, true, callBlock())) },
		"PRIORITY": func(c *rawClient, id uint32) {
			c.ok(c.fr.WritePriority(id, http2.PriorityParam{StreamDep: 1000, Weight: 3}))
		},
	}
	fatal := map[string]http2.ErrCode{ // all others leave the connection in use
		"idle RST_STREAM": http2.ErrCodeProtocol, "idle DATA": http2.ErrCodeProtocol, "idle WINDOW_UPDATE": http2.ErrCodeProtocol,
		"closed HEADERS": http2.ErrCodeStreamClosed, "reset HEADERS": http2.ErrCodeStreamClosed, "skipped HEADERS": http2.ErrCodeProtocol,
	}
	for state, enter := range states {
		for frame, send := range frames {
			name := state + " " + frame
			t.Run(name, func(t *testing.T) {
				c := rawDial(t, addr)
				id := enter(c)
				send(c, id)
				if code, ends := fatal[name]; ends {
					c.ends(code)
					return
				}
				c.roundTrip()
				c.next = 101
				next := c.begin([]byte("next"))
				for {
					call := h.take(t)
					last := string(call.Message) == "next"
					call.Reply(echoed(call.Message))
					if last {
						break
					}
				}
				if a := c.wait(next); a.field("grpc-status") != "0" {
					t.Errorf("the next call: %v", a)
				}
			})
		}
	}
}

// The answer to a ping waits for the answer to a call, but not for long: a call may take as long as its store.
func TestPingsAreAnsweredWithCalls(t *testing.T) {
	h := hold()
	inBubble(t, h, nil, func(t *testing.T, _ *Server, dial func() *rawClient) {
		c := dial()
		answered := func() bool {
			n := len(c.seen)
			return n > 0 && c.seen[n-1].kind == http2.FramePing && c.seen[n-1].ack
		}
		for _, took := range []time.Duration{0, pingDelay / 2, time.Minute} {
			synctest.Wait() // no goroutine is about to write
			began := time.Now()
			id := c.begin([]byte("a"))
			c.ok(c.fr.WritePing(false, [8]byte{'p'}))
			go func() {
				call := h.take(t)
				time.Sleep(took) //nolint:forbidigo // virtual time
				call.Reply(echoed(call.Message))
			}()
			c.until("the answer to the ping", answered)
			if passed := time.Since(began); passed != min(took, pingDelay) {
				t.Errorf("a call of %v: the ping is answered after %v", took, passed)
			}
			c.until("the answer to the call", func() bool { return c.answer(id).ended })
			c.seen = nil
		}
		began := time.Now()
		c.ok(c.fr.WritePing(false, [8]byte{'q'}))
		c.until("the answer to the ping", answered)
		if passed := time.Since(began); passed != 0 {
			t.Errorf("without a call, after %v", passed)
		}
	})
}

// A client that pings endlessly while a call waits does not delay or accumulate the answers.
func TestPingsWithoutEnd(t *testing.T) {
	h := hold()
	inBubble(t, h, nil, func(t *testing.T, _ *Server, dial func() *rawClient) {
		c := dial()
		c.roundTrip() // later, only this test writes
		c.seen = nil
		c.begin([]byte("a"))
		call := h.take(t)
		began := time.Now()
		go func() {
			for range 20 {
				c.ok(c.fr.WritePing(false, [8]byte{'p'}))
				time.Sleep(pingDelay / 4) //nolint:forbidigo // virtual time
			}
		}()
		c.until("an answer", func() bool {
			n := len(c.seen)
			return n > 0 && c.seen[n-1].kind == http2.FramePing && c.seen[n-1].ack
		})
		if passed := time.Since(began); passed != pingDelay {
			t.Errorf("the first ping is answered after %v", passed)
		}
		time.Sleep(20 * pingDelay) //nolint:forbidigo // virtual time
		call.Reply(echoed(call.Message))
		c.until("all answers", func() bool {
			n := 0
			for _, e := range c.seen {
				if e.kind == http2.FramePing && e.ack {
					n++
				}
			}
			return n == 20
		})
	})
}

func TestPings(t *testing.T) {
	addr, _ := start(t, echo{}, func(o *Options) { o.MinPingInterval = time.Hour })
	c := rawDial(t, addr)
	ping := func(n byte) { c.ok(c.fr.WritePing(false, [8]byte{n, 1, 2, 3, 4, 5, 6, 255})) }
	for n := range byte(20) { // after each answer one is fine
		c.echo(nil)
		ping(n)
		c.until("the answer", func() bool {
			e := c.seen[len(c.seen)-1]
			return e.kind == http2.FramePing && e.ack && e.ping == [8]byte{n, 1, 2, 3, 4, 5, 6, 255}
		})
	}
	for n := range byte(maxStrikes + 1) {
		ping(n)
	}
	if e := c.ends(http2.ErrCodeEnhanceYourCalm); e.debug != "too_many_pings" {
		t.Errorf("GOAWAY says %q", e.debug)
	}
}

// A client that sends GOAWAY still gets its pending answers.
func TestGoAwayOfAClient(t *testing.T) {
	h := hold()
	addr, _ := start(t, h, nil)
	c := rawDial(t, addr)
	id := c.begin([]byte("x"))
	c.ok(c.fr.WriteGoAway(0, http2.ErrCodeNo, []byte("bye")))
	c.roundTrip()
	h.take(t).Reply(echoed("x"))
	if a := c.wait(id); a.field("grpc-status") != "0" {
		t.Errorf("%v", a)
	}
}

// A call that its client resets ends immediately, and gets no answer.
func TestACallIsReset(t *testing.T) {
	h := hold()
	addr, _ := start(t, h, nil)
	for _, watched := range []bool{true, false} {
		c := rawDial(t, addr)
		id := c.begin([]byte("x"))
		call := h.take(t)
		if call.Err() != nil {
			t.Fatal(call.Err())
		}
		var done <-chan struct{}
		if watched {
			done = call.Done()
		}
		c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
		c.roundTrip()
		if watched {
			<-done
		}
		<-call.Done()
		if !errors.Is(call.Err(), context.Canceled) {
			t.Errorf("Err: %v", call.Err())
		}
		call.Reply(echoed("too late"))
		c.roundTrip()
		if a := c.answers[id]; a != nil {
			t.Errorf("an answer: %v", a)
		}
		other := c.begin([]byte("x"))
		_ = c.conn.Close()
		call = h.take(t)
		<-call.Done()
		call.Fail(codes.Internal, "too late")
		_ = other
	}
}

func TestDeadlines(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"2H": 2 * time.Hour, "3M": 3 * time.Minute, "4S": 4 * time.Second, "5m": 5 * time.Millisecond, "6u": 6 * time.Microsecond,
		"7n": 7, "99999999S": 99999999 * time.Second, "00000001S": time.Second,
	} {
		t.Run(value, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				h := hold()
				startOn(t, l, h, nil)
				c := rawOn(t, l.dial())
				_ = c.conn.SetDeadline(time.Time{})
				began := time.Now()
				c.begin(nil, "grpc-timeout", value)
				call := <-h
				if d, ok := call.Deadline(); !ok || d.Sub(began) != want {
					t.Errorf("deadline after %v", d.Sub(began))
				}
				if call.Err() != nil {
					t.Errorf("Err at once: %v", call.Err())
				}
				if want > 24*time.Hour {
					go call.Reply(echoed(nil))
					c.wait(1)
					return
				}
				<-call.Done()
				if passed := time.Since(began); passed != want || !errors.Is(call.Err(), context.DeadlineExceeded) {
					t.Errorf("after %v: %v", passed, call.Err())
				}
				go call.Fail(codes.DeadlineExceeded, "late")
				if a := c.wait(1); a.field("grpc-status") != "4" {
					t.Errorf("%v", a)
				}
			})
		})
	}
	t.Run("none", func(t *testing.T) {
		h := hold()
		addr, _ := start(t, h, nil)
		c := rawDial(t, addr)
		c.begin(nil)
		call := h.take(t)
		if d, ok := call.Deadline(); ok {
			t.Errorf("deadline %v", d)
		}
		call.Reply(echoed(nil))
	})
}

// A message is decompressed only up to its bound.
func TestGzip(t *testing.T) {
	addr, _ := start(t, handlerFunc(func(_ time.Time, calls []*Call) {
		for _, call := range calls {
			call.Reply(echoed(call.Message[:min(len(call.Message), 10)]))
		}
	}), func(o *Options) { o.MaxMessageBytes = 1 << 20 })
	c := rawDial(t, addr)
	for size, status := range map[int]string{0: "0", 10: "0", 1 << 20: "0", 1<<20 + 1: "8", 8 << 20: "8"} {
		p := gzipped(make([]byte, size))
		id := c.open(false, "grpc-encoding", "gzip")
		c.data(id, true, flagged(1, len(p), p))
		if a := c.wait(id); a.field("grpc-status") != status {
			t.Errorf("%d bytes: %v", size, a)
		}
	}
	a := c.wait(c.begin(nil, "grpc-encoding", "snappy"))
	if a.field("grpc-status") != "12" || a.field("grpc-accept-encoding") != "gzip" {
		t.Errorf("snappy: %v %v", a, a.fields)
	}
}

// A client of HTTP/1 gets one clear line of text.
func TestHTTP1(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "PUT / HTTP/1.0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n" + strings.Repeat("x", 50_000),
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, request)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%.20q: %v", request, err)
		}
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusBadRequest || string(body) != notHTTP2 || err != nil {
			t.Errorf("%.20q: %d %q %v", request, resp.StatusCode, body, err)
		}
		_ = conn.Close()
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, "\x16\x03\x01\x02\x00") // TLS
	if all, _ := io.ReadAll(conn); len(all) > 0 {
		t.Errorf("a client of TLS gets %q", all)
	}
}

// Floods end the connection, or cost little. Other connections are served.
func TestFloodsOfFrames(t *testing.T) {
	addr, _ := start(t, echo{}, func(o *Options) { o.MaxHeaderBytes, o.MinPingInterval = 2<<10, time.Millisecond })
	huge := bytes.Repeat([]byte("x"), 500)
	const calm = http2.ErrCodeEnhanceYourCalm
	for name, test := range map[string]struct {
		ends http2.ErrCode // or NO_ERROR, where the connection stays
		n    int
		send func(c *rawClient, i int)
	}{
		"SETTINGS": {calm, 2 * maxIdleFrames, func(c *rawClient, _ int) {
			c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}))
		}},
		"SETTINGS ACK":  {calm, 2 * maxIdleFrames, func(c *rawClient, _ int) { c.ok(c.fr.WriteSettingsAck()) }},
		"PING":          {calm, 2 * maxIdleFrames, func(c *rawClient, i int) { c.ok(c.fr.WritePing(false, [8]byte{1})) }},
		"PING ACK":      {calm, 2 * maxIdleFrames, func(c *rawClient, i int) { c.ok(c.fr.WritePing(true, [8]byte{1})) }},
		"PRIORITY":      {calm, 2 * maxIdleFrames, func(c *rawClient, _ int) { c.ok(c.fr.WritePriority(3, http2.PriorityParam{StreamDep: 1})) }},
		"WINDOW_UPDATE": {calm, 2 * maxIdleFrames, func(c *rawClient, _ int) { c.ok(c.fr.WriteWindowUpdate(0, 1)) }},
		"unknown":       {calm, 2 * maxIdleFrames, func(c *rawClient, _ int) { c.ok(c.fr.WriteRawFrame(200, 0, 0, nil)) }},
		"empty DATA": {calm, 2 * maxIdleFrames, func(c *rawClient, i int) {
			if i == 0 {
				c.open(false)
			}
			c.data(1, false, nil)
		}},
		"DATA for a closed stream": {calm, 2 * maxIdleFrames, func(c *rawClient, i int) {
			if i == 0 {
				c.ok(c.fr.WriteRSTStream(c.open(false), http2.ErrCodeCancel))
			}
			c.data(1, false, nil)
		}},
		"rapid reset": {calm, 2 * maxIdleFrames, func(c *rawClient, i int) { c.ok(c.fr.WriteRSTStream(c.open(false), http2.ErrCodeCancel)) }},
		"malformed":   {calm, 2 * maxIdleFrames, func(c *rawClient, i int) { c.openFields(true, without(callFields(), ":method")) }},
		"CONTINUATION": {calm, 2 * maxIdleFrames, func(c *rawClient, i int) {
			if i == 0 {
				c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}))
			}
			c.ok(c.fr.WriteContinuation(1, false, nil))
		}},
		"long headers": {calm, 2 * maxIdleFrames, func(c *rawClient, i int) {
			c.openFields(true, append(callFields(), hpack.HeaderField{Name: "a", Value: string(huge)}, hpack.HeaderField{Name: "b", Value: string(huge)}, hpack.HeaderField{Name: "c", Value: string(huge)}, hpack.HeaderField{Name: "d", Value: string(huge)}, hpack.HeaderField{Name: "e", Value: string(huge)}))
		}},
		"rapid reset of whole calls": {http2.ErrCodeNo, maxIdleFrames, func(c *rawClient, i int) { c.ok(c.fr.WriteRSTStream(c.begin(nil), http2.ErrCodeCancel)) }},
		"bombs": {calm, 2 * maxIdleFrames, func(c *rawClient, i int) { // a long value in the table, and many references to it
			if i == 0 {
				c.wait(c.openFields(true, append(callFields(), hpack.HeaderField{Name: "bomb", Value: string(huge)})))
			}
			c.ok(c.fr.WriteBlock(c.next, true, append(callBlock(), bytes.Repeat([]byte{0x80 | 62}, 5000)...)))
			c.next += 2
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := rawDial(t, addr)
			other := rawDial(t, addr)
			end := make(chan struct{})
			sent := make(chan struct{})
			if name == "bombs" {
				test.send(c, 0)
			}
			var ended error
			go func() { // the client must read at the same time
				defer close(end)
				for ended = c.read(); ended == nil; ended = c.read() {
					if n := len(c.seen); n > 0 && c.seen[n-1].kind == http2.FrameGoAway {
						return
					}
					clear(c.answers)
				}
			}()
			writer := &rawClient{t: t, conn: c.conn, fr: http2test.New(c.conn, nil), next: c.next}
			writer.fr.Encoder.SetMaxDynamicTableSize(0)
			go func() {
				defer close(sent)
				for i := range test.n {
					if name == "bombs" {
						i++
					}
					test.send(writer, i)
				}
			}()
			for served := false; !served; {
				other.echo([]byte("meanwhile"))
				select {
				case <-sent:
					served = true
				case <-end:
					served = true
				default:
				}
			}
			if test.ends == http2.ErrCodeNo {
				_ = c.conn.Close()
				<-end
				<-sent
				return
			}
			select {
			case <-end:
			case <-time.After(patience):
				t.Fatal("the connection goes on")
			}
			_ = c.conn.Close()
			<-sent
			if (name == "long headers" || name == "bombs" || name == "malformed") && ended != nil {
				return // the server has closed the connection with more than 64 KiB unread, which can cost the client the GOAWAY
			}
			if n := len(c.seen); n == 0 || c.seen[n-1].kind != http2.FrameGoAway || c.seen[n-1].code != test.ends {
				t.Errorf("the connection ended with %+v, %v", c.seen[max(0, n-1):], ended)
			}
		})
	}
}

// A client that measures its bandwidth sends a ping with each part of a large answer. It is not disconnected.
func TestPingsDuringALargeAnswer(t *testing.T) {
	addr, _ := start(t, echo{}, func(o *Options) { o.MinPingInterval = time.Hour })
	c := rawDial(t, addr)
	c.roundTrip()
	const size = 200_000
	sent := make([]byte, size)
	id := c.open(false)
	c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10_000}))
	for rest := message(sent); len(rest) > 0; {
		n := min(len(rest), maxFrame)
		c.ok(c.fr.WriteData(id, n == len(rest), rest[:n]))
		rest = rest[n:]
	}
	got := func() int { return len(c.answer(id).data) }
	for arrived := 10_000; arrived < size; arrived += 10_000 {
		c.until("a part of the answer", func() bool { return got() >= arrived })
		c.ok(c.fr.WritePing(false, [8]byte{1}))
		c.ok(c.fr.WriteWindowUpdate(0, 10_000))
		c.ok(c.fr.WriteWindowUpdate(id, 10_000))
	}
	c.ok(c.fr.WriteWindowUpdate(0, 10_000))
	c.ok(c.fr.WriteWindowUpdate(id, 10_000))
	if a := c.wait(id); a.field("grpc-status") != "0" || len(a.data) != size+prefixSize {
		t.Errorf("%v, %d bytes", a, len(a.data))
	}
}

// Over TLS the answers are the same, and a stopping server does not interrupt a handshake.
func TestTLS(t *testing.T) {
	authority := tlstest.NewAuthority(t, "authority")
	pair := authority.Issue(t, "localhost")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	var seen *tls.ConnectionState
	addr, s := start(t, echo{}, func(o *Options) {
		o.Handshake = func(raw, _ net.Conn) (net.Conn, *tls.ConnectionState, error) {
			conn := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
			if err := conn.Handshake(); err != nil {
				return nil, nil, err
			}
			state := conn.ConnectionState()
			return conn, &state, nil
		}
		streams(func(s *Stream) error { seen = s.TLS(); return nil })(o)
	})
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: authority.Pool(), ServerName: "localhost", NextProtos: []string{"h2", "http/1.1"}}
	conn := tls.Client(raw, config)
	c := rawOn(t, conn)
	if p := conn.ConnectionState().NegotiatedProtocol; p != "h2" {
		t.Errorf("ALPN chose %q", p)
	}
	for _, size := range []int{0, 100, 100_000} {
		c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
		c.ok(c.fr.WriteWindowUpdate(0, 200_000))
		c.echo(make([]byte, size))
	}
	if a := c.wait(c.open(true, ":path", otherPath)); a.field("grpc-status") != "0" || seen == nil || seen.NegotiatedProtocol != "h2" {
		t.Errorf("%v, TLS %+v", a, seen)
	}

	late, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	for s.openConns() < 2 {
		runtime.Gosched()
	}
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	c.goAways()
	_ = c.conn.Close()
	c = rawOn(t, tls.Client(late, config))
	c.echo([]byte("on its way"))
	c.goAways()
	_ = c.conn.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
