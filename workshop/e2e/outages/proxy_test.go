package outages

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// proxy stands between clients and one server and simulates a bad network. Faults add up until Mend.
type proxy struct {
	Addr string // host:port, for clients

	proxy *toxiproxy.Proxy
}

// startProxy starts a proxy that passes everything on. It stops at the end of the test.
func startProxy(t testing.TB, to *redistest.Server) *proxy {
	t.Helper()
	return startProxyTo(t, to.Addr)
}

// startProxyTo is startProxy for any server.
func startProxyTo(t testing.TB, addr string) *proxy {
	t.Helper()
	for try := 1; ; try++ {
		a := redistest.FreeAddr(t)
		p := &proxy{Addr: a, proxy: toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "proxy", a, addr)}
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

// Delay delays every answer.
func (p *proxy) Delay(t testing.TB, by time.Duration) {
	t.Helper()
	p.add(t, "latency", "downstream", map[string]int64{"latency": by.Milliseconds()})
}

// Drop discards the bytes that both sides send. Connections stay open, and new ones can be made.
func (p *proxy) Drop(t testing.TB) {
	t.Helper()
	p.add(t, "timeout", "upstream", map[string]int64{"timeout": 0})
	p.add(t, "timeout", "downstream", map[string]int64{"timeout": 0})
}

// Swallow discards only the answers: the server executes the commands, but the client does not learn of it.
func (p *proxy) Swallow(t testing.TB) {
	t.Helper()
	p.add(t, "timeout", "downstream", map[string]int64{"timeout": 0})
}

// Cut resets a connection as soon as the server answers on it.
func (p *proxy) Cut(t testing.TB) {
	t.Helper()
	p.add(t, "reset_peer", "downstream", map[string]int64{"timeout": 0})
}

// CutAfter ends each connection after a number of bytes of answers, even in the middle of one.
func (p *proxy) CutAfter(t testing.TB, bytes int64) {
	t.Helper()
	p.add(t, "limit_data", "downstream", map[string]int64{"bytes": bytes})
}

// Slice forwards data in pieces of a few bytes, with a pause before each.
func (p *proxy) Slice(t testing.TB, bytes int, pause time.Duration) {
	t.Helper()
	slices := map[string]int64{"average_size": int64(bytes), "size_variation": int64(bytes) / 2, "delay": pause.Microseconds()}
	p.add(t, "slicer", "upstream", slices)
	p.add(t, "slicer", "downstream", slices)
}

// Mend removes all faults. Connections that lost data are closed; the others continue.
func (p *proxy) Mend(t testing.TB) {
	t.Helper()
	bounded(t, "mend a proxy", func() { p.proxy.Toxics.ResetToxics(context.Background()) })
}

// Close ends all connections and rejects new ones until Open.
func (p *proxy) Close(t testing.TB) {
	t.Helper()
	bounded(t, "close a proxy", p.proxy.Stop)
}

// Open accepts connections again.
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

// bounded fails the test if do takes too long.
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
