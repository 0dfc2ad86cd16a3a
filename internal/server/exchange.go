package server

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// exchange is a call on the built-in HTTP/2 server that grpc-go answers. grpc-go serves it over net/http's interfaces, and reads
// such a body as fast as it arrives, however slowly the messages are used, with a buffer of 16 KiB even for one byte. So the body
// gives it one message at a time, and full buffers. The part of a message that grpc-go has taken counts as memory that the
// connection holds.
type exchange struct {
	http.ResponseWriter
	body   io.ReadCloser
	conn   *intake.Conn // may be nil
	detach func()

	used    chan struct{} // receives a value when the message that was read is used
	many    bool          // the client may send more than one message; else grpc-go looks for the end of the request after the first one
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

type exchangeKey struct{}

// exchangeOf is the exchange of a call on the built-in HTTP/2 server, else nil.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// handOver lets grpc-go answer a call that arrived on the built-in HTTP/2 server. Its messages may have at most this
// many bytes.
func (s *Server) handOver(to *grpc.Server, most int, w http.ResponseWriter, r *http.Request) {
	x := &exchange{
		ResponseWriter: w, body: r.Body, conn: intake.FromContext(r.Context()), detach: func() {}, most: most, many: s.streams[r.URL.Path],
		used: make(chan struct{}, 1), written: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	x.close = sync.OnceFunc(func() { close(x.closed) })
	if d, ok := w.(interface{ Detach() }); ok {
		x.detach = d.Detach
	}
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	r.Body = exchangeBody{x}
	defer x.release() // grpc-go has stopped reading when it returns
	to.ServeHTTP(x, r)
}

// Flush implements http.Flusher. grpc-go calls it after each message.
func (x *exchange) Flush() {
	x.ResponseWriter.(http.Flusher).Flush()
	signal(x.written)
}

// flushed waits until the last message was passed to the transport. ctx is the request's context: it ends when the connection is cut.
func (x *exchange) flushed(ctx context.Context) error {
	select {
	case <-x.written:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next lets grpc-go read the next message.
func (x *exchange) next() { signal(x.used) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// release gives back what is held of a message.
func (x *exchange) release() {
	if n := x.held.Swap(0); x.conn != nil {
		x.conn.Hold(-n)
	}
}

// hold counts the bytes by which a decompressed message of this size exceeds what has arrived. The caller calls the result when
// it no longer needs the message.
func (x *exchange) hold(size int64) func() {
	more := size - x.held.Load()
	if x.conn == nil || more <= 0 {
		return func() {}
	}
	x.conn.Hold(more)
	return func() { x.conn.Hold(-more) }
}

// exchangeBody is the body of the request of an exchange.
type exchangeBody struct{ x *exchange }

// Close implements io.Closer.
func (b exchangeBody) Close() error {
	b.x.close()
	return b.x.body.Close()
}

// Read implements io.Reader.
func (b exchangeBody) Read(p []byte) (int, error) {
	x := b.x
	if x.have == len(x.prefix) && x.rest == 0 {
		if x.many {
			select {
			case <-x.used:
			case <-x.closed:
				return 0, http.ErrBodyReadAfterClose
			}
			x.release()
		}
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
		<-x.closed // grpc-go rejects the message when it has its size
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

// exchangedStream is a stream of an exchange: it reads a message when it is asked for one, and an answer is sent when it was passed to
// the transport, which waits for the client.
type exchangedStream struct {
	grpc.ServerStream
	x     *exchange
	began bool // a message was asked for
}

// RecvMsg implements grpc.ServerStream.
func (s *exchangedStream) RecvMsg(m any) error {
	if s.began {
		s.x.next()
	}
	s.began = true
	return s.ServerStream.RecvMsg(m)
}

// SendMsg implements grpc.ServerStream.
func (s *exchangedStream) SendMsg(m any) error {
	if err := s.ServerStream.SendMsg(m); err != nil {
		return err
	}
	return s.x.flushed(s.Context())
}

// clientStreams are the paths of the methods whose clients send any number of messages.
func clientStreams(g *grpc.Server) map[string]bool {
	all := make(map[string]bool)
	for service, info := range g.GetServiceInfo() {
		for _, m := range info.Methods {
			if m.IsClientStream {
				all["/"+service+"/"+m.Name] = true
			}
		}
	}
	return all
}
