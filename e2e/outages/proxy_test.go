package outages

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// proxy stands between clients and one server, and treats what they say as a bad network does. Each ill is on top of the
// others until Mend.
type proxy struct {
	Addr string // host:port, for clients

	proxy *toxiproxy.Proxy
}

// startProxy starts a proxy that passes everything on. It ends with the test.
func startProxy(t testing.TB, to *redistest.Server) *proxy {
	t.Helper()
	for try := 1; ; try++ {
		a := redistest.FreeAddr(t)
		p := &proxy{Addr: a, proxy: toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "redis", a, to.Addr)}
		err := p.proxy.Start()
		if err == nil {
			t.Cleanup(p.proxy.Stop)
			return p
		}
		if try == 5 {
			t.Fatalf("start a proxy: %v", err)
		}
	}
}

// Delay lets every answer come so much later.
func (p *proxy) Delay(t testing.TB, by time.Duration) {
	t.Helper()
	p.add(t, "latency", "downstream", map[string]int64{"latency": by.Milliseconds()})
}

// Drop loses what either side says; connections stay open, and new ones can be made.
func (p *proxy) Drop(t testing.TB) {
	t.Helper()
	p.add(t, "timeout", "upstream", map[string]int64{"timeout": 0})
	p.add(t, "timeout", "downstream", map[string]int64{"timeout": 0})
}

// Swallow loses the answers alone: what was asked for is done, and nobody learns of it.
func (p *proxy) Swallow(t testing.TB) {
	t.Helper()
	p.add(t, "timeout", "downstream", map[string]int64{"timeout": 0})
}

// Cut resets a connection as soon as the server answers on it.
func (p *proxy) Cut(t testing.TB) {
	t.Helper()
	p.add(t, "reset_peer", "downstream", map[string]int64{"timeout": 0})
}

// CutAfter ends each connection after so many bytes of answers, in the midst of one or not.
func (p *proxy) CutAfter(t testing.TB, bytes int64) {
	t.Helper()
	p.add(t, "limit_data", "downstream", map[string]int64{"bytes": bytes})
}

// Slice passes on what either side says in pieces of a few bytes, each so much later than the one before.
func (p *proxy) Slice(t testing.TB, bytes int, pause time.Duration) {
	t.Helper()
	slices := map[string]int64{"average_size": int64(bytes), "size_variation": int64(bytes) / 2, "delay": pause.Microseconds()}
	p.add(t, "slicer", "upstream", slices)
	p.add(t, "slicer", "downstream", slices)
}

// Mend takes all ills away. Connections that lost something are closed; the others go on.
func (p *proxy) Mend(t testing.TB) {
	t.Helper()
	bounded(t, "mend a proxy", func() { p.proxy.Toxics.ResetToxics(context.Background()) })
}

// Close ends all connections and refuses new ones until Open.
func (p *proxy) Close(t testing.TB) {
	t.Helper()
	bounded(t, "close a proxy", p.proxy.Stop)
}

// Open lets connections be made again.
func (p *proxy) Open(t testing.TB) {
	t.Helper()
	if err := p.proxy.Start(); err != nil {
		t.Fatalf("open a proxy: %v", err)
	}
}

func (p *proxy) add(t testing.TB, kind, direction string, attributes map[string]int64) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"type": kind, "stream": direction, "attributes": attributes})
	if err != nil {
		t.Fatal(err)
	}
	bounded(t, "let a proxy "+kind, func() { _, err = p.proxy.Toxics.AddToxicJson(strings.NewReader(string(text))) })
	if err != nil {
		t.Fatalf("let a proxy %s: %v", kind, err)
	}
}

// bounded ends the test if do takes too long.
func bounded(t testing.TB, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
	}
}
