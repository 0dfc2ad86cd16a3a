package transport

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
)

// guest is a client that connects and leaves. Its errors are ignored: the server may close the connection at any time.
type guest struct {
	net.Conn
	*http2test.Client
}

func visit(addr string, settings ...http2.Setting) (*guest, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	g := &guest{conn, http2test.New(conn, conn)}
	_ = g.Greet(settings...)
	return g, nil
}

// begin starts a call of a method, without its message.
func (g *guest) begin(path string) {
	_ = g.Begin(http2test.Unindexed(callFields(":path", path)...))
}

// call sends a call. It reads until the call is answered, or the connection ends.
func (g *guest) call(path string, p []byte) {
	g.begin(path)
	_ = g.WriteData(g.Stream, true, message(p))
	for {
		f, err := g.ReadFrame()
		if err != nil {
			return
		}
		h := f.Header()
		if h.StreamID == g.Stream && (h.Type == http2.FrameRSTStream || h.Flags.Has(http2.FlagDataEndStream)) {
			return
		}
		if p, ok := f.(*http2.PingFrame); ok && !p.IsAck() {
			_ = g.WritePing(true, p.Data)
		}
	}
}

// habits are the actions of clients that leave soon.
var habits = map[string]func(g *guest){
	"calls": func(g *guest) {
		for range rand.IntN(50) {
			g.call(echoPath, make([]byte, rand.IntN(500)))
		}
	},
	"long messages": func(g *guest) {
		_ = g.WriteWindowUpdate(0, 1<<30)
		g.call(echoPath, make([]byte, 15_000))
	},
	"other requests": func(g *guest) { g.call("/other", nil) },
	"leaves abruptly": func(g *guest) {
		for range 100 {
			g.begin(echoPath)
			_ = g.WriteData(g.Stream, true, message([]byte("unread")))
		}
		_ = g.Conn.(*net.TCPConn).SetLinger(0)
	},
	"resets": func(g *guest) {
		for i := range 100 {
			g.begin([]string{echoPath, "/other"}[i%2])
			if i%3 == 0 {
				_ = g.WriteData(g.Stream, true, message([]byte("reset")))
			}
			_ = g.WriteRSTStream(g.Stream, http2.ErrCodeCancel)
		}
		g.call(echoPath, nil)
	},
	"sends half of a message": func(g *guest) {
		for range 10 {
			g.begin(echoPath)
			_ = g.WriteData(g.Stream, false, message(make([]byte, 15_000))[:10_000])
			g.begin("/other")
			_ = g.WriteData(g.Stream, false, make([]byte, 10_000))
		}
	},
	"breaks the rules": func(g *guest) {
		g.begin(echoPath)
		_ = g.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 3, []byte{0xff, 0xff, 0xff})
		_, _ = io.Copy(io.Discard, g)
	},
}

// longHabits are the actions of clients that stay until the server disconnects them.
var longHabits = map[string]func(g *guest){
	"opens no window": func(g *guest) {
		_ = g.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for range 10 {
			g.begin(echoPath)
			_ = g.WriteData(g.Stream, true, message([]byte("stuck")))
			g.begin("/other")
			_ = g.WriteData(g.Stream, true, nil)
		}
		_, _ = io.Copy(io.Discard, g)
	},
	"stays until it must leave": func(g *guest) {
		for g.WritePing(false, [8]byte{}) == nil {
			if _, err := g.ReadFrame(); err != nil {
				return
			}
		}
	},
}

// resources are the resources that a process uses.
type resources struct {
	goroutines, files int
	heap              uint64
}

func inUse(t *testing.T) resources {
	t.Helper()
	runtime.GC()
	runtime.GC() // pools survive one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd") // empty where there is no such directory
	return resources{runtime.NumGoroutine(), len(files), m.HeapAlloc}
}

// Connections open, close, reset, stall and drain. In the end goroutines, files and memory are back at the start
// values: after seconds here, after ten minutes in make soak.
func TestSoakConnections(t *testing.T) {
	lasts := time.Second
	if os.Getenv("RATELIMITD_SOAK") != "" {
		lasts = 10 * time.Minute
	}
	calls := newCalls(t, 4096)
	b := startBounded(t, handlerFunc(func(_ time.Time, calls []*Call) {
		for i, call := range calls {
			if i%2 == 0 {
				call.Reply(echoed(call.Message))
			} else {
				go call.Reply(echoed(call.Message))
			}
		}
	}), 1<<20, 8<<20, func(o *Options) {
		o.Calls = calls
		o.WriteTimeout, o.MaxConnectionAge, o.MaxAgeGrace = time.Second, 2*time.Second, time.Second
	})
	one := func(do func(g *guest)) {
		g, err := visit(b.addr)
		if err != nil {
			t.Error(err)
			return
		}
		defer g.Close()
		do(g)
	}
	quiet := func() bool {
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		return len(b.server.conns) == 0 && calls.InFlight() == 0 && b.bytes.Held() == 0
	}
	settle := func(want resources) resources {
		var now resources
		for until := time.Now().Add(patience); time.Now().Before(until); <-time.After(10 * time.Millisecond) {
			if !quiet() {
				continue
			}
			now = inUse(t)
			if now.goroutines <= want.goroutines && now.files <= want.files && now.heap <= want.heap {
				break
			}
		}
		return now
	}

	before := inUse(t)
	before.heap += 4 << 20 // some maps do not shrink
	end := time.Now().Add(lasts)
	var running sync.WaitGroup
	var mu sync.Mutex
	visits := 0
	for i := range 12 {
		mine := habits
		if i%2 == 0 {
			mine = longHabits
		}
		running.Go(func() {
			for time.Now().Before(end) {
				for _, do := range mine { // the order is random
					one(do)
					mu.Lock()
					visits++
					mu.Unlock()
					if !time.Now().Before(end) {
						break
					}
				}
			}
		})
	}
	running.Wait()
	after := settle(before)
	t.Logf("%d visits; before: %+v, after: %+v", visits, before, after)
	if !quiet() {
		t.Errorf("connections stay open, or what they held counts: %d calls in flight, %d bytes", calls.InFlight(), b.bytes.Held())
	}
	if after.goroutines > before.goroutines || after.files > before.files || after.heap > before.heap {
		t.Errorf("in use: %+v, before %+v", after, before)
	}
}
