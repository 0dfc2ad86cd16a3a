package transport

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// startOn serves on a listener.
func startOn(t testing.TB, l net.Listener, h Handler, change func(*Options)) *Server {
	t.Helper()
	o := Options{Path: echoPath, Handler: h, Calls: newCalls(t, 4096)}
	if change != nil {
		change(&o)
	}
	s := New(o)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Close)
	return s
}

// A handler receives the time at which its own call arrived, and the deadline counts from that time. This holds even if
// an earlier request on the connection was not a call, or never became one.
func TestArrivalTimeIsThatOfTheCall(t *testing.T) {
	for name, before := range map[string]func(*rawClient){
		"nothing":           func(*rawClient) {},
		"another request":   func(c *rawClient) { c.wait(c.open(true, ":path", "/other", ":method", "GET")) },
		"a reset call":      func(c *rawClient) { c.ok(c.fr.WriteRSTStream(c.open(false), http2.ErrCodeCancel)); c.roundTrip() },
		"an unended call":   func(c *rawClient) { c.open(false); c.roundTrip() },
		"a malformed call":  func(c *rawClient) { c.wait(c.open(true)) },
		"a call in flight":  func(c *rawClient) { c.begin(nil); c.roundTrip() },
		"an answered call":  func(c *rawClient) { c.echo(nil) },
		"an upload for two": func(c *rawClient) { c.data(c.open(false, ":path", "/other"), false, make([]byte, 100)); c.roundTrip() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				var late time.Duration
				startOn(t, l, handlerFunc(func(now time.Time, calls []*Call) {
					late = time.Since(now)
					for _, call := range calls {
						if name == "a call in flight" && len(call.Message) == 0 {
							continue
						}
						if err := call.Err(); err != nil {
							call.Fail(4, err.Error())
							continue
						}
						call.Reply(echoed(call.Message))
					}
				}), nil)
				c := rawOn(t, l.dial())
				_ = c.conn.SetDeadline(time.Time{})
				before(c)
				time.Sleep(time.Hour) //nolint:forbidigo // virtual time
				c.echo([]byte("x"), "grpc-timeout", "1S")
				if late != 0 {
					t.Errorf("the handler's time is %v old", late)
				}
			})
		})
	}
}

// An answer that has room does not wait for one that has none.
func TestAnAnswerWithoutRoomDelaysNoOther(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	stuck := c.begin([]byte("stuck"))
	c.roundTrip()
	id := c.open(false)
	c.ok(c.fr.WriteWindowUpdate(id, 100))
	c.data(id, true, message([]byte("fine")))
	if a := c.wait(id); a.field("grpc-status") != "0" || string(a.data[5:]) != "fine" {
		t.Fatalf("%v", a)
	}
	if a := c.answers[stuck]; a == nil || a.ended || len(a.data) > 0 {
		t.Fatalf("the other answer: %+v", a)
	}
	c.ok(c.fr.WriteWindowUpdate(stuck, 100))
	if a := c.wait(stuck); string(a.data[5:]) != "stuck" {
		t.Fatalf("%v", a)
	}
}

// Requests are not kept for a client that does not open its windows, and it cannot exceed its number of open streams.
func TestUnreadAnswersKeepNoRequests(t *testing.T) {
	addr, _ := start(t, handlerFunc(func(_ time.Time, calls []*Call) {
		for _, call := range calls {
			call.Reply(echoed(nil))
		}
	}), func(o *Options) { o.MaxStreams = 500 })
	c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	big := make([]byte, 60<<10)
	before := heap()
	for range 500 {
		id := c.open(false)
		for p := message(big); len(p) > 0; {
			n := min(len(p), maxFrame)
			c.data(id, n == len(p), p[:n])
			p = p[n:]
		}
		c.roundTrip()
	}
	if after := heap(); after > before+12<<20 {
		t.Errorf("500 unread answers hold %d KiB", (after-before)>>10)
	}
	if a := c.wait(c.begin(nil)); a.reset == nil || *a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("one stream more: %v", a)
	}
	c.ok(c.fr.WriteWindowUpdate(1, 5))
	c.wait(1)
	id := c.begin(nil)
	c.ok(c.fr.WriteWindowUpdate(id, 5))
	if a := c.wait(id); a.field("grpc-status") != "0" {
		t.Errorf("after one was read: %v", a)
	}
}

// A client that leaves too many answers waiting gets the reason for the loss of its connection.
func TestTooManyUnreadAnswers(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	other := rawDial(t, addr)
	for range 20 {
		c.begin(bytes.Repeat([]byte("x"), 16<<10-5-9))
		other.echo([]byte("meanwhile"))
	}
	if e := c.ends(http2.ErrCodeEnhanceYourCalm); e.debug != "answers are not read" {
		t.Errorf("GOAWAY says %q", e.debug)
	}
	other.echo([]byte("after"))
}

// A client before its preface is not sent anything, even when the server stops.
func TestShutdownWithAConnectionInItsHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := startOn(t, l, echo{}, nil)
		silent, late := l.dial(), l.dial()
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		c := rawOn(t, late)
		c.until("the server's settings", func() bool { return len(c.seen) > 0 })
		if c.seen[0].kind != http2.FrameSettings {
			t.Fatalf("the first frame is %+v", c.seen[0])
		}
		c.echo([]byte("on its way"))
		if all := c.goAways(); len(all) != 2 || all[0].stream != maxStreamID || all[1].stream != 1 {
			t.Errorf("GOAWAY %+v", all)
		}
		_ = c.conn.Close()
		if n, err := silent.Read(make([]byte, 100)); n > 0 || err == nil {
			t.Errorf("the silent client got %d bytes", n)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A client that only pings or checks health does not count as flooding the server.
func TestFewFramesForALongTimeAreNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		startOn(t, l, echo{}, nil)
		c := rawOn(t, l.dial())
		_ = c.conn.SetDeadline(time.Time{})
		for range 2 * maxIdleFrames {
			c.roundTrip()
			c.seen = c.seen[:0]
			time.Sleep(10 * time.Second) //nolint:forbidigo // virtual time
		}
		c.echo(nil)
	})
	t.Run("health checks", func(t *testing.T) {
		addr, _ := start(t, echo{}, streams(repeats))
		c := rawDial(t, addr)
		for n := range maxIdleFrames {
			id := c.open(true, ":path", []string{otherPath, "/unknown"}[n/(maxIdleFrames/2)])
			c.ok(c.fr.WriteWindowUpdate(0, 10))
			c.ok(c.fr.WriteWindowUpdate(0, 10))
			c.wait(id)
			delete(c.answers, id)
		}
	})
}

// A header block that cannot be found in its frame ends the connection: later blocks may refer to table entries from
// it.
func TestHeadersWithTooMuchPadding(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := rawDial(t, addr)
	c.ok(c.fr.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, 1, []byte{200, 1, 2, 3}))
	c.ends(http2.ErrCodeProtocol)
}

// An answer is not lost if the client sends data just after the stopping server has closed its side.
func TestLastAnswerSurvivesLateFrames(t *testing.T) {
	h := hold()
	addr, s := start(t, h, nil)
	c := rawDial(t, addr)
	id := c.begin(bytes.Repeat([]byte("x"), 10_000))
	call := h.take(t)
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	c.until("GOAWAY", func() bool {
		for _, e := range c.seen {
			if e.kind == http2.FramePing && e.ping == drainPing {
				return true
			}
		}
		return false
	})
	c.ok(c.fr.WritePing(true, drainPing))
	call.Reply(echoed(call.Message))
	for range 50 { // the answer is not read yet
		c.ok(c.fr.WriteWindowUpdate(0, 1))
		c.ok(c.fr.WritePing(false, [8]byte{}))
	}
	if a := c.wait(id); len(a.data) != 10_005 || a.field("grpc-status") != "0" {
		t.Errorf("%v with %d bytes", a, len(a.data))
	}
	_ = c.conn.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
