package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// localAddrKey is the key under which handlers find the address that a connection came in on.
var localAddrKey = http.LocalAddrContextKey

var errReset = errors.New("the client has reset the request")

// headerCopies is how many times the header fields of a request for Other take the memory of the fields themselves: http.Request has a
// map of them, and gRPC makes a list and another map of that.
const headerCopies = 4

// exchangeSize is how many bytes a request for Other takes besides its header fields and its body: stacks and buffers, most of them of
// grpc-go.
const exchangeSize = 32 << 10

// maxFields is how many header fields a request for Other may have. A field of two bytes takes hundreds in these copies.
const maxFields = 1_000

const (
	tooManyFields = "too many header fields"
	noRoom        = "too much is kept for clients"
)

// exchange is a request that Other answers.
type exchange struct {
	stream   stream
	inFlight intake.InFlight  // under the connection's mutex
	over     bool             // the handler has returned; under the connection's mutex
	prefix   [prefixSize]byte // of the first message, if it is one of gRPC; owned by the goroutine that reads
	whole    bool             // that message is complete; owned by the goroutine that reads
	room     sync.Cond        // with the connection's mutex: the windows have room, or the stream is closed
	request  *http.Request
	cancel   context.CancelFunc
	end      func() // of what Options.Admit has admitted
	body     body

	// Only the handler's goroutine uses these.
	header   http.Header
	trailers []string // names that the handler has announced
	began    bool     // the header was sent
	bodyless bool     // the status or the method allows no body
}

// beginExchange begins a request for Other. It counts as a call in flight, so that requests which never end are bounded.
func (c *conn) beginExchange(id uint32, h *head, ended bool) error {
	if len(c.headers.fields) > maxFields {
		return c.refuseExchange(id, ended, tooManyFields, http2.ErrCodeEnhanceYourCalm)
	}
	held, calls := exchangeSize+headerCopies*c.headers.size, c.server.opts.Calls
	if c.limits != nil && !c.limits.HasRoom(int64(held)) {
		calls.NoRoom()
		return c.refuseExchange(id, ended, noRoom, http2.ErrCodeRefusedStream)
	}
	inFlight, ok := calls.Begin(c.limits)
	if !ok {
		return c.refuseExchange(id, ended, tooManyCalls, http2.ErrCodeRefusedStream)
	}
	x := &exchange{stream: stream{conn: c, id: id, declared: h.declared, ended: ended}, inFlight: inFlight, header: make(http.Header)}
	x.end = func() {}
	if admit := c.server.opts.Admit[string(c.headers.first(pathField))]; admit != nil {
		end, refusal := admit(c.limits)
		if refusal != "" {
			calls.End(inFlight, 0)
			return c.refuseExchange(id, ended, refusal, http2.ErrCodeRefusedStream)
		}
		x.end = end
		calls.Detach(&x.inFlight)
	}
	x.stream.exchange = x
	x.body.arrived.L = &x.body.mu
	x.room.L = &c.mu
	x.body.ended = ended
	x.body.used = x.credit
	if ended {
		x.follow(nil, true)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	x.cancel = cancel
	c.add(&x.stream, held)
	go x.run(ctx, c.headers.copyFields())
	return nil
}

// refuseExchange answers a request without Other: a gRPC call with a message, and any other request with a code.
func (c *conn) refuseExchange(id uint32, ended bool, message string, code http2.ErrCode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.closed(id, ended)
	if !bytes.HasPrefix(c.headers.first(typeField), []byte("application/grpc")) {
		return http2.StreamError{StreamID: id, Code: code}
	}
	c.appendStatus(id, codes.ResourceExhausted, message, "")
	if !ended {
		c.out = appendReset(c.out, id, http2.ErrCodeNo)
	}
	return nil
}

// valueOf returns the first value of a header field, or "".
func valueOf(fields []hpack.HeaderField, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// follow notices when the first message of a request is complete. The caller is the goroutine that reads.
func (x *exchange) follow(data []byte, ended bool) {
	if x.whole {
		return
	}
	if before := x.stream.body - int64(len(data)); before < prefixSize {
		copy(x.prefix[before:], data)
	}
	x.whole = ended || x.stream.body >= prefixSize && x.stream.body-prefixSize >= int64(binary.BigEndian.Uint32(x.prefix[1:]))
	if x.whole {
		c := x.stream.conn
		c.mu.Lock()
		c.server.opts.Calls.Arrived(&x.inFlight, time.Now())
		c.mu.Unlock()
	}
}

// run lets the handler answer.
func (x *exchange) run(ctx context.Context, fields []hpack.HeaderField) {
	c := x.stream.conn
	var trailers []byte
	returned := false // the handler, without a panic
	defer func() {
		p := recover()
		x.end()
		x.cancel()
		x.body.fail(errReset)
		c.mu.Lock()
		if returned && !x.stream.gone {
			x.appendEnd(trailers)
		}
		// Before the lock is released: a client that has its answer may start the next call at once.
		c.open--
		c.hold(&x.stream, -x.stream.held)
		c.server.opts.Calls.End(x.inFlight, 0)
		x.inFlight, x.over = intake.InFlight{}, true // what arrives now is of no use
		if p != nil && !x.stream.gone {
			c.out = appendReset(c.out, x.stream.id, http2.ErrCodeInternal)
			c.remove(&x.stream)
		}
		c.mu.Unlock()
		c.wrote.Store(true)
		c.flush()
		if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // a panic value
			c.server.opts.Log.Error("panic while answering", "path", valueOf(fields, ":path"), "panic", p)
		}
	}()
	if ctx.Err() != nil {
		return // while it waited to run; what its headers take counts no longer
	}
	r, err := x.makeRequest(ctx, fields)
	if err != nil {
		http.Error(x, err.Error(), http.StatusBadRequest)
	} else {
		x.request = r
		c.server.opts.Other.ServeHTTP(x, r)
	}
	x.WriteHeader(http.StatusOK)
	trailers, returned = x.encodeTrailers(), true
}

func (x *exchange) makeRequest(ctx context.Context, fields []hpack.HeaderField) (*http.Request, error) {
	c := x.stream.conn
	header := make(http.Header)
	host, path := valueOf(fields, ":authority"), valueOf(fields, ":path")
	for _, f := range fields {
		switch {
		case strings.HasPrefix(f.Name, ":"):
		case f.Name == "host" && host == "":
			host = f.Value
		case f.Name == "host":
		default:
			name := http.CanonicalHeaderKey(f.Name)
			header[name] = append(header[name], f.Value)
		}
	}
	where := &url.URL{Path: path}
	if path != "*" {
		parsed, err := url.ParseRequestURI(path)
		if err != nil {
			return nil, err
		}
		where = parsed
	}
	r := &http.Request{
		Method: valueOf(fields, ":method"), URL: where, RequestURI: path, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: header, Host: host, RemoteAddr: c.sock.RemoteAddr().String(), TLS: c.tls,
		Body: &x.body, ContentLength: x.stream.declared,
	}
	if x.stream.declared < 0 && x.body.atEnd() {
		r.ContentLength, r.Body = 0, http.NoBody
	}
	return r.WithContext(ctx), nil
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	if x.began {
		return
	}
	informational := status >= 100 && status < 200
	x.began = !informational
	x.bodyless = status == http.StatusNoContent || status == http.StatusNotModified || x.request != nil && x.request.Method == http.MethodHead
	for _, names := range x.header.Values("Trailer") {
		for name := range strings.SplitSeq(names, ",") {
			x.trailers = append(x.trailers, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	fields := []hpack.HeaderField{{Name: ":status", Value: strconv.Itoa(status)}}
	for name, values := range x.header {
		if strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(x.trailers, name) {
			continue
		}
		fields = appendFields(fields, name, values)
	}
	c, block := x.stream.conn, encode(fields...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !x.stream.gone {
		c.appendBlock(x.stream.id, false, block)
	}
}

// appendFields appends a header field for each value, and leaves out what HTTP/2 does not allow.
func appendFields(fields []hpack.HeaderField, name string, values []string) []hpack.HeaderField {
	name = strings.ToLower(name)
	if !httpguts.ValidHeaderFieldName(name) || name == "connection" || name == "transfer-encoding" {
		return fields
	}
	for _, v := range values {
		if httpguts.ValidHeaderFieldValue(v) {
			fields = append(fields, hpack.HeaderField{Name: name, Value: v})
		}
	}
	return fields
}

// Write implements http.ResponseWriter. It waits while the client's windows are closed, or the client does not read.
func (x *exchange) Write(p []byte) (int, error) {
	x.WriteHeader(http.StatusOK)
	if x.bodyless {
		return 0, http.ErrBodyNotAllowed
	}
	c := x.stream.conn
	c.countMore(int64(len(p))) // it may wait for long
	defer c.countMore(-int64(len(p)))
	for rest := p; len(rest) > 0; {
		c.sock.await(maxUnsent)
		c.mu.Lock()
		for !x.stream.gone && min(c.window, x.stream.window) <= 0 {
			c.mu.Unlock()
			c.flush()
			c.mu.Lock()
			if !x.stream.gone && min(c.window, x.stream.window) <= 0 {
				x.block()
			}
		}
		if x.stream.gone {
			c.mu.Unlock()
			return len(p) - len(rest), errReset
		}
		part := rest[:min(len(rest), maxFrame)]
		rest = rest[len(part)-len(c.appendData(&x.stream, part)):]
		c.progress = true
		c.unstick()
		long := len(c.out) >= maxFrame
		c.mu.Unlock()
		if long {
			c.flush()
		}
	}
	return len(p), nil
}

// block waits until the windows have room, or the stream is closed. The caller holds the connection's lock.
func (x *exchange) block() {
	c := x.stream.conn
	if c.blockedHandlers++; c.stuckSince.IsZero() {
		c.stuckSince = time.Now()
	}
	x.room.Wait()
	c.blockedHandlers--
}

// Detach ends the count of the request as a call in flight, and the wait for its first message. A handler calls it whose request
// stays open for long, and bounds such requests itself.
func (x *exchange) Detach() {
	c := x.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !x.over {
		c.server.opts.Calls.Detach(&x.inFlight)
	}
}

// More counts the request as some more calls in flight. If it returns false, there are too many, and the handler rejects the request.
func (x *exchange) More(calls int) bool {
	c := x.stream.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	return !x.over && c.server.opts.Calls.More(&x.inFlight, calls)
}

// TakeTurn waits until the handler may decompress a message. The handler calls done when the message is counted as held. Connections that
// decode large messages take turns with it.
func (x *exchange) TakeTurn() (done func()) {
	large := x.stream.conn.server.large
	large <- struct{}{}
	return func() { <-large }
}

// Flush implements http.Flusher.
func (x *exchange) Flush() {
	x.WriteHeader(http.StatusOK)
	x.stream.conn.flush()
}

// encodeTrailers returns the trailers that the handler has set, or nil.
func (x *exchange) encodeTrailers() []byte {
	var fields []hpack.HeaderField
	for name, values := range x.header {
		if plain, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			fields = appendFields(fields, plain, values)
		} else if slices.Contains(x.trailers, name) {
			fields = appendFields(fields, name, values)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return encode(fields...)
}

// appendEnd appends the end of the answer. The caller holds the connection's lock.
func (x *exchange) appendEnd(trailers []byte) {
	c := x.stream.conn
	if len(trailers) > 0 {
		c.appendBlock(x.stream.id, true, trailers)
	} else {
		c.out = appendFrame(c.out, http2.FrameData, http2.FlagDataEndStream, x.stream.id, 0)
	}
	c.answered(&x.stream)
}

// credit lets the client send as many bytes again as the handler has read. freed is how much memory that has given back.
func (x *exchange) credit(n, freed int) {
	c := x.stream.conn
	c.mu.Lock()
	c.hold(&x.stream, -min(int64(freed), x.stream.held))
	more := n > 0 && !x.stream.gone && !x.stream.ended
	if more {
		x.stream.received -= int64(n)
		c.out = appendCredit(c.out, x.stream.id, int64(n))
	}
	c.mu.Unlock()
	if more {
		c.flush()
	}
}

// body is the part of a request's body that has arrived and that the handler has not read yet. The window bounds it.
type body struct {
	used func(n, freed int) // called when the handler has read n bytes, with the bytes of memory that became free

	mu      sync.Mutex
	arrived sync.Cond
	chunks  []chunk
	ended   bool
	err     error
}

// chunk is a part of a body. Each is as large as those before it together, up to maxChunk, so that what they take is little more than what
// they contain. A buffer that grows would leave copies behind.
type chunk struct {
	data []byte
	read int // bytes of data that the handler has read
}

const minChunk, maxChunk = 256, 16 << 10

// write adds a part, and returns how many bytes of memory that took.
func (b *body) write(p []byte, ended bool) (taken int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil && len(p) > 0 {
		size := 0
		if n := len(b.chunks); n > 0 {
			last := &b.chunks[n-1]
			part := p[:min(len(p), cap(last.data)-len(last.data))]
			last.data, p = append(last.data, part...), p[len(part):]
			size = 2 * cap(last.data)
		}
		if len(p) > 0 {
			size = min(max(size, len(p), minChunk), maxChunk)
			b.chunks = append(b.chunks, chunk{data: make([]byte, 0, size)})
			taken += size
		}
	}
	b.ended = b.ended || ended
	b.arrived.Broadcast()
	return taken
}

// fail makes reading fail from now on. It returns how many bytes of memory became free.
func (b *body) fail(err error) (freed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	for _, part := range b.chunks {
		freed += cap(part.data)
	}
	b.chunks = nil
	b.arrived.Broadcast()
	return freed
}

func (b *body) atEnd() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended && len(b.chunks) == 0
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	for b.err == nil && !b.ended && len(b.chunks) == 0 {
		b.arrived.Wait()
	}
	switch {
	case b.err != nil:
		defer b.mu.Unlock()
		return 0, b.err
	case len(b.chunks) == 0:
		defer b.mu.Unlock()
		return 0, io.EOF
	}
	n, freed := 0, 0
	for n < len(p) && len(b.chunks) > 0 {
		first := &b.chunks[0]
		part := copy(p[n:], first.data[first.read:])
		n, first.read = n+part, first.read+part
		if first.read == len(first.data) {
			freed += cap(first.data)
			*first = chunk{}
			b.chunks = b.chunks[1:]
		}
	}
	if len(b.chunks) == 0 {
		b.chunks = nil
	}
	b.mu.Unlock()
	b.used(n, freed)
	return n, nil
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.used(0, b.fail(http.ErrBodyReadAfterClose))
	return nil
}
