package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// exchange is a call on the built-in HTTP/2 server that grpc-go answers. grpc-go serves it over net/http's interfaces, and reads
// such a body as fast as it arrives, however slowly the messages are used, with a buffer of 16 KiB even for one byte. So the body
// gives it one message at a time, and full buffers. The part of a message that grpc-go has taken counts as memory that the
// connection holds.
//
// It decompresses messages too, because grpc-go would do that for any number of calls at a time, before anything is counted.
type exchange struct {
	answering
	body io.ReadCloser
	conn *intake.Conn // may be nil

	used    chan struct{} // receives a value when the message that was read is used
	many    bool          // the client may send more than one message; else grpc-go looks for the end of the request after the first one
	written chan struct{} // receives a value when a message was passed to the transport
	closed  chan struct{}
	close   func()

	zipped bool         // messages may be compressed with gzip
	most   int          // bytes of a message
	held   atomic.Int64 // bytes of the message that grpc-go has

	// Owned by the goroutine that reads the body.
	prefix [prefixSize]byte
	began  bool   // the prefix was read
	rest   int    // bytes of the message that grpc-go has not read
	plain  []byte // the rest of a message that was compressed
}

// prefixSize is how many bytes precede a message: whether it is compressed, and its size.
const prefixSize = 5

// answering is what package transport gives a handler to answer with.
type answering interface {
	http.ResponseWriter
	http.Flusher
	Detach()
	More(calls int) bool
	TakeTurn() (done func())
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
		answering: w.(answering), body: r.Body, conn: intake.FromContext(r.Context()), most: most, many: s.streams[r.URL.Path],
		zipped: r.Header.Get("Grpc-Encoding") == gzip.Name,
		used:   make(chan struct{}, 1), written: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	x.close = sync.OnceFunc(func() { close(x.closed) })
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	r.Body = exchangeBody{x}
	defer x.release() // grpc-go has stopped reading when it returns
	to.ServeHTTP(x, r)
}

// Flush implements http.Flusher. grpc-go calls it after each message.
func (x *exchange) Flush() {
	x.answering.Flush()
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

// hold counts bytes as held. It returns false if they are too many: then the connection is closed.
func (x *exchange) hold(n int) bool {
	x.held.Add(int64(n))
	return x.conn == nil || x.conn.Hold(int64(n))
}

// release gives back what is held of a message.
func (x *exchange) release() {
	if n := x.held.Swap(0); x.conn != nil {
		x.conn.Hold(-n)
	}
}

// exchangeBody is the body of the request of an exchange.
type exchangeBody struct{ x *exchange }

// Close implements io.Closer.
func (b exchangeBody) Close() error {
	b.x.close()
	return b.x.body.Close()
}

// Read implements io.Reader. grpc-go reads with a buffer of 16 KiB, so there is always room for a prefix.
func (b exchangeBody) Read(p []byte) (int, error) {
	x := b.x
	if x.began && x.rest == 0 {
		if x.many {
			select {
			case <-x.used:
			case <-x.closed:
				return 0, http.ErrBodyReadAfterClose
			}
			x.release()
		}
		x.began = false
	}
	switch {
	case !x.began:
		return x.begin(p)
	case x.rest > x.most:
		<-x.closed // grpc-go rejects the message when it has its size
		return 0, http.ErrBodyReadAfterClose
	case len(x.plain) > 0:
		n := copy(p, x.plain) // it counts already
		x.plain = x.plain[n:]
		x.rest -= n
		return n, nil
	}
	n, err := io.ReadFull(x.body, p[:min(len(p), x.rest)])
	x.rest -= n
	if !x.hold(n) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// begin reads the prefix of a message, and all of a compressed message.
func (x *exchange) begin(p []byte) (int, error) {
	n, err := io.ReadFull(x.body, x.prefix[:])
	if n < prefixSize {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return copy(p, x.prefix[:n]), err
	}
	x.began, x.rest = true, int(binary.BigEndian.Uint32(x.prefix[1:]))
	if x.prefix[0] == 1 && x.zipped && x.rest <= x.most {
		if err := x.unzip(); err != nil {
			return 0, err
		}
	}
	return copy(p, x.prefix[:]), nil
}

// unzip reads a compressed message, and replaces it by what it decompresses to. If it cannot be decompressed, what replaces it makes grpc-go
// answer as it would.
func (x *exchange) unzip() error {
	var packed bytes.Buffer // it grows: a client may announce a long message and never send it
	part := make([]byte, min(x.rest, 16<<10))
	for packed.Len() < x.rest {
		n, err := io.ReadFull(x.body, part[:min(len(part), x.rest-packed.Len())])
		packed.Write(part[:n])
		if !x.hold(n) || err != nil {
			return io.ErrUnexpectedEOF
		}
	}
	defer x.TakeTurn()()
	message, code, _ := transport.Unzip(packed.Bytes(), x.most)
	switch code {
	case codes.OK:
		x.announce(0, len(message))
	case codes.ResourceExhausted:
		x.announce(0, x.most+1) // grpc-go answers RESOURCE_EXHAUSTED
	default:
		message = []byte{0}
		x.announce(1, len(message)) // this is not gzip: grpc-go answers INTERNAL
	}
	x.plain = message
	if !x.hold(len(message) - packed.Len()) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// announce writes another prefix.
func (x *exchange) announce(flag byte, size int) {
	x.prefix[0], x.rest = flag, size
	binary.BigEndian.PutUint32(x.prefix[1:], uint32(size))
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
