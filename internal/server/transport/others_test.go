package transport

import (
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Requests for Other count as calls in flight from their headers on, so that a client cannot make the server hold any number of
// them. Requests beyond the bound never reach Other.
func TestOtherRequestsAreBounded(t *testing.T) {
	const most = 8
	let := make(chan struct{})
	calls := newCalls(t, most)
	addr, _ := start(t, echo{}, func(o *Options) {
		o.Calls = calls
		o.Other = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-let:
			case <-r.Context().Done():
			}
		})
	})
	c := rawDial(t, addr)
	for range most {
		c.open(false, ":path", "/other")
	}
	if a := c.wait(c.open(true, ":path", "/other")); a.field("grpc-status") != "8" {
		t.Errorf("a gRPC call: %v", a)
	}
	if a := c.wait(c.open(true, ":path", "/other", "content-type", "text/plain")); a.reset == nil || *a.reset != http2.ErrCodeRefusedStream {
		t.Errorf("another request: %v", a)
	}
	if n := calls.InFlight(); n != most {
		t.Errorf("%d requests in flight, want %d", n, most)
	}
	c.ok(c.fr.WriteRSTStream(1, http2.ErrCodeCancel))
	close(let)
	for i := range uint32(most - 1) {
		c.wait(2*i + 3)
	}
	for calls.InFlight() > 0 {
		c.roundTrip()
	}
	c.echo(nil)
}

// A request for Other stops counting as in flight before the client has its whole answer. Otherwise a client with as many open calls as
// it may have could be refused its next one. The test stops the handler's goroutine after the handler has returned, and lets the connection
// send what there is.
func TestAnsweredRequestIsNotInFlight(t *testing.T) {
	calls := newCalls(t, 8)
	stopped := make(chan *exchange, 1)
	addr, _ := start(t, echo{}, func(o *Options) {
		o.Calls = calls
		o.Other = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			x := w.(*exchange)
			x.body.mu.Lock()
			stopped <- x
		})
	})
	c := rawDial(t, addr)
	id := c.open(true, ":path", "/other")
	x := <-stopped
	for range 1000 {
		c.roundTrip()
		if a := c.answers[id]; a != nil && a.ended {
			break
		}
	}
	if n := calls.InFlight(); c.answers[id] != nil && c.answers[id].ended && n != 0 {
		t.Errorf("%d calls in flight while the goroutine is stopped, although the client has its answer", n)
	}
	x.body.mu.Unlock()
	c.wait(id)
	if n := calls.InFlight(); n != 0 {
		t.Errorf("%d calls in flight", n)
	}
}

// Requests for Other take turns when they decompress: no more of them than may decode large messages.
func TestOtherRequestsTakeTurns(t *testing.T) {
	type turns interface{ TakeTurn() (done func()) }
	const requests = 50
	var now, most atomic.Int64
	addr, _ := start(t, echo{}, func(o *Options) {
		o.Other = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			done := w.(turns).TakeTurn()
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			for range 1000 {
				runtime.Gosched()
			}
			now.Add(-1)
			done()
		})
	})
	c := rawDial(t, addr)
	var ids []uint32
	for range requests {
		ids = append(ids, c.open(true, ":path", "/other", "content-type", "text/plain"))
	}
	for _, id := range ids {
		c.wait(id)
	}
	if n, bound := most.Load(), int64(max(1, runtime.GOMAXPROCS(0)/2)); n < 1 || n > bound {
		t.Errorf("%d at once, want at most %d", n, bound)
	}
}

// A call with binary metadata, as tracing libraries send it, is a call of the method like any other. A value that is not base64 is
// left to Other, which answers what is wrong.
func TestBinaryMetadata(t *testing.T) {
	addr, _ := start(t, echo{}, nil)
	c := rawDial(t, addr)
	for _, value := range []string{"", "AAEC", "AAE=", "AAE"} {
		c.echo(nil, "grpc-trace-bin", value)
	}
	if a := c.wait(c.begin(nil, "grpc-trace-bin", "!")); a.field("grpc-status") == "0" {
		t.Errorf("%v", a)
	}
}

// A request that its handler detaches counts no longer as in flight, and ends like any other.
func TestDetachedRequest(t *testing.T) {
	const most = 4
	calls := newCalls(t, most)
	began := make(chan http.ResponseWriter)
	addr, _ := start(t, echo{}, func(o *Options) {
		o.Calls = calls
		o.Other = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(interface{ Detach() }).Detach()
			began <- w
			<-r.Context().Done()
		})
	})
	c := rawDial(t, addr)
	var last http.ResponseWriter
	for range 3 * most {
		c.open(false, ":path", "/other")
		last = <-began
	}
	if n := calls.InFlight(); n != 0 {
		t.Errorf("%d requests in flight", n)
	}
	c.echo(nil)
	for i := range uint32(3 * most) {
		c.ok(c.fr.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
	}
	last.(interface{ Detach() }).Detach() // too late, and of no consequence
	c.echo(nil)
	for calls.InFlight() != 0 {
		c.roundTrip()
	}
}

// Each header field of a request for another handler is copied several times. What that takes counts, even where a few references to
// the table stand for all of them, and too many fields are refused before they are copied.
func TestHeaderFieldsOfOthersAreBounded(t *testing.T) {
	let := make(chan struct{})
	b := startBounded(t, echo{}, 64<<20, 64<<20, func(o *Options) {
		o.Other = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-let:
			case <-r.Context().Done():
			}
		})
	})
	c := rawDial(t, b.addr)
	fields := func(n int, extra ...string) []hpack.HeaderField {
		all := callFields(append(extra, ":path", "/other")...)
		for len(all) < n {
			all = append(all, hpack.HeaderField{Name: "a", Value: "b"})
		}
		return all
	}
	if a := c.wait(c.openFields(true, fields(maxFields+1))); a.field("grpc-status") != "8" || a.field("grpc-message") != tooManyFields {
		t.Errorf("a gRPC call: %v", a)
	}
	if a := c.wait(c.openFields(true, fields(maxFields+1, "content-type", "text/plain"))); a.reset == nil || *a.reset != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("another request: %v", a)
	}
	b.holds(t, 0)
	size := int64(0)
	for _, f := range fields(maxFields) {
		size += int64(f.Size())
	}
	for i := range int64(3) { // the first one fills the table
		c.openFields(false, fields(maxFields))
		b.holds(t, (i+1)*(exchangeSize+headerCopies*size))
	}
	few := fields(10)
	for i := range int64(3) {
		all := int64(0)
		for _, f := range few {
			all += int64(f.Size())
		}
		c.openFields(false, few)
		b.holds(t, 3*(exchangeSize+headerCopies*size)+(i+1)*(exchangeSize+headerCopies*all))
	}
	close(let)
	b.holds(t, 0)
}
