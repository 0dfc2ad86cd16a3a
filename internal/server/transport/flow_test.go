package transport

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// An answer is sent as far as the windows allow, and not a byte further.
func TestAnswersKeepToTheWindows(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	for _, initial := range []int{0, 1, 65_535} {
		for _, step := range []int{7_001, 50_000} {
			t.Run(fmt.Sprintf("from %d in steps of %d", initial, step), func(t *testing.T) {
				c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(initial)})
				want := message(bytes.Repeat([]byte("0123456789"), 10_000))
				id := c.begin(want[prefixSize:])
				credit, connection := initial, initialWindow
				for !c.done(id) {
					c.roundTrip()
					if got := len(c.answer(id).data); got != min(credit, connection, len(want)) {
						t.Fatalf("%d bytes came, with a window of %d and %d for the connection", got, credit, connection)
					}
					c.ok(c.fr.WriteWindowUpdate(id, uint32(step)))
					c.roundTrip()
					c.ok(c.fr.WriteWindowUpdate(0, uint32(step)))
					credit, connection = credit+step, connection+step
				}
				if a := c.answers[id]; !bytes.Equal(a.data, want) || a.field("grpc-status") != "0" {
					t.Errorf("%v with %d bytes", a, len(a.data))
				}
			})
		}
	}
}

// Settings may make a window negative. It must become positive again before anything is sent.
func TestSettingsShrinkWindowsBelowZero(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	ids := []uint32{c.begin(make([]byte, 5000)), c.begin(make([]byte, 5000)), c.begin(make([]byte, 200))}
	arrived := func(want ...int) {
		t.Helper()
		c.roundTrip()
		for i, id := range ids {
			if got := len(c.answer(id).data); got != want[i] {
				t.Fatalf("stream %d got %d bytes, want %d", id, got, want[i])
			}
		}
	}
	arrived(1000, 1000, 205)
	c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})) // now -1000
	c.ok(c.fr.WriteWindowUpdate(ids[0], 1000))
	arrived(1000, 1000, 205)
	c.ok(c.fr.WriteWindowUpdate(ids[0], 1))
	arrived(1001, 1000, 205)
	c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1500}))
	arrived(2501, 1500, 205)
	c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
	arrived(5005, 5005, 205)
	for _, id := range ids {
		if a := c.wait(id); a.field("grpc-status") != "0" {
			t.Errorf("stream %d: %v", id, a)
		}
	}
}

// A client that respects its credit can send any number of bytes, even if most of them are padding.
func TestCreditsComeBack(t *testing.T) {
	for path, change := range map[string]func(*Options){
		echoPath: nil,
		otherPath: streams(func(s *Stream) error {
			m, err := s.Recv()
			if err != nil {
				return err
			}
			return s.Send(fmt.Appendf(nil, "%d bytes", prefixSize+len(m)))
		}),
	} {
		t.Run(path, func(t *testing.T) {
			addr, _ := start(t, handlerFunc(func(_ time.Time, calls []*Call) {
				for _, call := range calls {
					call.Reply(echoed(fmt.Sprintf("%d bytes", prefixSize+len(call.Message))))
				}
			}), change)
			c := rawDial(t, addr)
			c.roundTrip()
			id := c.open(false, ":path", path)
			credit := func(stream uint32, initial int) int {
				for _, e := range c.seen {
					if e.kind == http2.FrameWindowUpdate && e.stream == stream {
						initial += int(e.n)
					}
				}
				return initial
			}
			const size = 3 << 19
			rest, sent := message(make([]byte, size)), 0
			for len(rest) > 0 {
				n, pad := min(len(rest), 700), 255
				frame := n + pad + 1
				c.until("credit", func() bool {
					return min(credit(id, receiveWindow), credit(0, initialWindow)) >= sent+frame
				})
				c.ok(c.fr.WriteDataPadded(id, n == len(rest), rest[:n], make([]byte, pad)))
				sent += frame
				rest = rest[n:]
			}
			if a := c.wait(id); !bytes.HasSuffix(a.data, fmt.Appendf(nil, "%d bytes", size+prefixSize)) {
				t.Errorf("%v: %q", a, a.data)
			}
		})
	}
}

// A client that violates flow control loses the stream or the connection.
func TestFlowControlViolations(t *testing.T) {
	release := make(chan struct{})
	addr, _ := start(t, hold(), waiting(release))
	defer close(release)
	const most = 1<<31 - 1
	t.Run("more than the window of a stream", func(t *testing.T) {
		c := rawDial(t, addr)
		id := c.open(false, ":path", otherPath)
		for range receiveWindow/maxFrame + 1 {
			c.data(id, false, make([]byte, maxFrame))
		}
		if a := c.wait(id); *a.reset != http2.ErrCodeFlowControl {
			t.Errorf("%v", a)
		}
	})
	t.Run("too much credit for a stream", func(t *testing.T) {
		c := rawDial(t, addr)
		id := c.begin(nil)
		c.ok(c.fr.WriteWindowUpdate(id, most))
		if a := c.wait(id); *a.reset != http2.ErrCodeFlowControl {
			t.Errorf("%v", a)
		}
	})
	t.Run("too much credit for the connection", func(t *testing.T) {
		c := rawDial(t, addr)
		c.ok(c.fr.WriteWindowUpdate(0, most))
		c.ends(http2.ErrCodeFlowControl)
	})
	t.Run("too much credit by settings", func(t *testing.T) {
		c := rawDial(t, addr)
		c.ok(c.fr.WriteWindowUpdate(c.begin(nil), 1))
		c.ok(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: most}))
		c.ends(http2.ErrCodeFlowControl)
	})
	t.Run("credit of nothing for a stream", func(t *testing.T) {
		c := rawDial(t, addr)
		id := c.begin(nil)
		c.ok(c.fr.WriteWindowUpdate(id, 0))
		if a := c.wait(id); *a.reset != http2.ErrCodeProtocol {
			t.Errorf("%v", a)
		}
	})
}

// A client that does not read from its socket does not cause endless answers in memory, and others are served.
func TestAClientThatDoesNotRead(t *testing.T) {
	addr, s := start(t, echo{}, nil)
	c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	c.ok(c.fr.WriteWindowUpdate(0, 1<<31-1-initialWindow))
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second)) // the server stops reading
		for err := error(nil); err == nil; {
			id := c.next
			c.next += 2
			out := append(appendFrame(nil, http2.FrameHeaders, http2.FlagHeadersEndHeaders, id, len(callBlock())), callBlock()...)
			body := message(make([]byte, 10_000))
			out = append(appendFrame(out, http2.FrameData, http2.FlagDataEndStream, id, len(body)), body...)
			_, err = c.conn.Write(out)
		}
	}()
	other := rawDial(t, addr)
	for served := 0; ; served++ {
		other.echo([]byte("meanwhile"))
		select {
		case <-wrote:
		default:
			continue
		}
		break
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.mu.Lock()
		if kept := int64(len(conn.out)) + conn.sock.unsent.Load(); kept > maxUnsent+64<<10 {
			t.Errorf("%d KiB of answers are kept", kept>>10)
		}
		conn.mu.Unlock()
	}
}

// A stream waits to send while its client does not read, even if it sends a few bytes at a time. It continues when the
// client reads.
func TestUnreadMessagesAreBounded(t *testing.T) {
	const part, size = 1 << 10, 16 << 20
	most := make(chan int64, 1)
	var s *Server
	unsent := func() (n int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for conn := range s.conns {
			n += conn.sock.unsent.Load()
		}
		return n
	}
	var addr string
	addr, s = start(t, echo{}, func(o *Options) {
		streams(func(s *Stream) error {
			seen := int64(0)
			for range size / part {
				if err := s.Send(make([]byte, part-prefixSize)); err != nil {
					return err
				}
				seen = max(seen, unsent())
			}
			most <- seen
			return nil
		})(o)
	})
	c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	if err := c.conn.(*net.TCPConn).SetReadBuffer(256 << 10); err != nil {
		t.Fatal(err)
	}
	c.ok(c.fr.WriteWindowUpdate(0, 1<<31-1-initialWindow))
	id := c.open(true, ":path", otherPath)
	for until := time.Now().Add(patience); unsent() <= maxUnsent; <-time.After(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the kernel takes every answer")
		}
	}
	if a := c.wait(id); len(a.data) != size {
		t.Errorf("%d bytes came: %v", len(a.data), a)
	}
	if n := <-most; n > maxUnsent+64<<10 {
		t.Errorf("%d KiB of answers were kept", n>>10)
	}
}
