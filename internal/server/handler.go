package server

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// newTransport returns the HTTP/2 server.
func (s *Server) newTransport(opts *Options, services *transport.Services, methods []*method) *transport.Server {
	h := &callHandler{method: methods[0], more: make(map[string]*method)}
	var more []string
	for _, m := range methods[1:] {
		more = append(more, m.path)
		h.more[m.path] = m
	}
	o := transport.Options{
		Path:             h.path,
		More:             more,
		Handler:          h,
		Streams:          services.Streams(),
		Panicked:         s.shared.Panicked,
		Calls:            s.calls,
		Failed:           func(code codes.Code) { h.answers.observe(time.Time{}, code) },
		HandshakeTimeout: handshakeTimeout,
		MaxMessageBytes:  opts.Requests.MaxBytes,
		MaxHeaderBytes:   endpoint.MaxHeaderSize,
		MaxStreams:       opts.Connections.MaxStreams,
		WriteTimeout:     opts.Connections.WriteTimeout,
		PingAfter:        pingAfter,
		PingTimeout:      pingTimeout,
		MinPingInterval:  leastPingInterval,
		MaxConnectionAge: max(opts.Connections.MaxAge, 0),
		MaxAgeGrace:      opts.Connections.MaxAgeGrace,
		Log:              s.shared.Log,
	}
	if opts.Tracer != nil {
		o.Wanted = traceFields
	}
	if creds := opts.Listen.Credentials; creds != nil {
		o.Handshake = func(raw, _ net.Conn) (net.Conn, *tls.ConnectionState, error) { return transport.Handshake(creds, raw) }
	}
	return transport.New(o)
}

// callHandler answers the methods that decide.
type callHandler struct {
	*method
	more map[string]*method // the other methods by path
}

// of returns the method of a call.
func (h *callHandler) of(call *transport.Call) *method {
	path := call.Path()
	if path == h.path {
		return h.method
	}
	return h.more[path]
}

// Handle implements transport.Handler.
func (h *callHandler) Handle(now time.Time, calls []*transport.Call) {
	a := arrivals.Get().(*arrival)
	a.messages = a.messages[:0]
	together := 0
	for together < len(calls) && len(a.messages)+len(calls[together].Message) <= maxKeptMessages {
		a.messages = append(a.messages, calls[together].Message...)
		together++
	}
	text := string(a.messages) // one allocation for the strings of all requests, except for long messages
	for i, call := range calls {
		if i >= together {
			h.of(call).begin(now, &a.batch, call, string(call.Message))
			continue
		}
		size := len(call.Message) // begin may answer the call
		h.of(call).begin(now, &a.batch, call, text[:size])
		text = text[size:]
	}
	a.batch.Send()
	arrivals.Put(a)
}

// arrival is the working memory for calls that arrived together. It is reused.
type arrival struct {
	messages []byte // the short messages
	batch    limiter.Batch
}

var arrivals = sync.Pool{New: func() any { return new(arrival) }}

// begin starts deciding a call, and answers it if it is decided. text is its message as a string.
func (m *method) begin(now time.Time, b *limiter.Batch, call *transport.Call, text string) {
	c := m.pool.Get().(*rateLimitCall)
	if c.answer == nil {
		c.answer = c.finish
	}
	c.method, c.wire, c.start, c.size = m, call, now, len(call.Message)
	if decided, err := m.start(b, call, text, c); decided {
		c.finish(err)
	}
}

// start starts deciding a call, and reports whether it is decided. A panic becomes an error.
func (m *method) start(b *limiter.Batch, call *transport.Call, text string,
	c *rateLimitCall) (decided bool, err error) {
	decided = true // also after a panic
	defer async.Recover(&err)
	if err := m.read(c, call.Message, text); err != nil {
		return true, err
	}
	if n := c.decodedSize(); n > 0 {
		call.Hold(n)
	}
	return m.decide(call, b, c, c.answer)
}

// finish answers a call.
func (c *rateLimitCall) finish(err error) {
	m, call := c.method, c.wire
	c.wire = nil
	if err == nil {
		err = c.encode()
	}
	if err == nil {
		m.answers.observe(c.start, codes.OK) // before the reply, so that a client with an answer finds it in the metrics
		if c.decision.Delay > 0 {
			call.ReplyWith(c, descriptor.DelayHeader, delayMillis(&c.decision))
		} else {
			call.Reply(c)
		}
		c.release()
		return
	}
	_, panicked := errors.AsType[*async.PanicError](err)
	st := m.statusOf(err)
	m.answers.observe(c.start, st.Code())
	call.Fail(st.Code(), st.Message())
	if !panicked { // after a panic, something may still refer to it
		c.release()
	}
}

// encode encodes the answer before the connection is locked. A panic becomes an error.
func (c *rateLimitCall) encode() (err error) {
	defer async.Recover(&err)
	c.reply, err = c.method.append(c, c.reply[:0])
	return err
}

// AppendTo implements transport.Message.
func (c *rateLimitCall) AppendTo(b []byte) []byte { return append(b, c.reply...) }
