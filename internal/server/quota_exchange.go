package server

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/intake"
)

// quotaExchange is a quota stream on the lean transport. grpc-go serves it over net/http's interfaces, and reads such a body without
// end, however slowly the messages are used, and with a buffer of 16 KiB for a byte. So the body gives it one message at a time, and
// full buffers.
type quotaExchange struct {
	http.ResponseWriter
	body   io.ReadCloser
	conn   *intake.Conn // may be nil
	detach func()

	used    chan struct{} // receives a value when the message that was read is used
	written chan struct{} // receives a value when a message was passed to the transport
	closed  chan struct{}
	close   func()

	most int          // bytes of a message
	held atomic.Int64 // bytes of the message that grpc-go has

	// Owned by the goroutine that reads the body.
	prefix [5]byte
	have   int // bytes of the prefix that were read
	rest   int // of the message
}

type quotaExchangeKey struct{}

// quotaExchangeOf is the exchange of a stream on the lean transport, else nil.
func quotaExchangeOf(ctx context.Context) *quotaExchange {
	x, _ := ctx.Value(quotaExchangeKey{}).(*quotaExchange)
	return x
}

// serveQuota answers a quota stream on the lean transport.
func (s *Server) serveQuota(w http.ResponseWriter, r *http.Request) {
	x := &quotaExchange{
		ResponseWriter: w, body: r.Body, conn: intake.FromContext(r.Context()), detach: func() {},
		used: make(chan struct{}, 1), written: make(chan struct{}, 1), closed: make(chan struct{}), most: s.quota.most,
	}
	x.close = sync.OnceFunc(func() { close(x.closed) })
	if d, ok := w.(interface{ Detach() }); ok {
		x.detach = d.Detach
	}
	r = r.WithContext(context.WithValue(r.Context(), quotaExchangeKey{}, x))
	r.Body = quotaBody{x}
	defer x.release() // grpc-go has stopped reading when it returns
	s.quota.grpc.ServeHTTP(x, r)
}

// Flush implements http.Flusher. grpc-go calls it after each message.
func (x *quotaExchange) Flush() {
	x.ResponseWriter.(http.Flusher).Flush()
	signal(x.written)
}

// flushed waits until the last message was passed to the transport. ctx is that of the request, which ends when the connection is cut.
func (x *quotaExchange) flushed(ctx context.Context) error {
	select {
	case <-x.written:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next lets grpc-go read the next message.
func (x *quotaExchange) next() { signal(x.used) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// release gives back what is held of a message.
func (x *quotaExchange) release() {
	if n := x.held.Swap(0); x.conn != nil {
		x.conn.Hold(-n)
	}
}

// hold counts what a message of that size has more than arrived, because it was compressed. The caller calls the result when it needs
// the message no more.
func (x *quotaExchange) hold(size int64) func() {
	more := size - x.held.Load()
	if x.conn == nil || more <= 0 {
		return func() {}
	}
	x.conn.Hold(more)
	return func() { x.conn.Hold(-more) }
}

// quotaBody is the body of the request of a quota stream.
type quotaBody struct{ x *quotaExchange }

// Close implements io.Closer.
func (b quotaBody) Close() error {
	b.x.close()
	return b.x.body.Close()
}

// Read implements io.Reader.
func (b quotaBody) Read(p []byte) (int, error) {
	x := b.x
	if x.have == len(x.prefix) && x.rest == 0 {
		select {
		case <-x.used:
		case <-x.closed:
			return 0, http.ErrBodyReadAfterClose
		}
		x.release()
		x.have = 0
	}
	if x.have < len(x.prefix) {
		n, err := x.body.Read(p[:min(len(p), len(x.prefix)-x.have)])
		copy(x.prefix[x.have:], p[:n])
		if x.have += n; x.have == len(x.prefix) {
			x.rest = int(binary.BigEndian.Uint32(x.prefix[1:]))
		}
		return n, err
	}
	if x.rest > x.most {
		<-x.closed // grpc-go refuses the message when it has its size
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := io.ReadFull(x.body, p[:min(len(p), x.rest)])
	x.rest -= n
	x.held.Add(int64(n))
	if x.conn != nil && !x.conn.Hold(int64(n)) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
