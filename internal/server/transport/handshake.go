package transport

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/credentials"
)

const notHTTP2 = "This port speaks gRPC over HTTP/2. This request is not HTTP/2.\n"

const answerToHTTP1 = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: " +
	"close\r\n\r\n" + notHTTP2

var errPreface = errors.New("the client does not speak HTTP/2")

// handshake returns after the client has sent the preface of HTTP/2.
func (c *reader) handshake() error {
	opts := &c.server.opts
	_ = c.sock.SetReadDeadline(time.Now().Add(opts.HandshakeTimeout))
	if opts.Handshake != nil {
		plain, state, err := opts.Handshake(c.sock, c.sock.kernel)
		if err != nil {
			return err
		}
		if c.limits != nil {
			c.limits.Secured()
		}
		c.mu.Lock()
		c.plain, c.tls = plain, state
		c.mu.Unlock()
	}
	c.buf = bufio.NewReaderSize(c.plain, readBuffer)
	if err := c.preface(); err != nil {
		return err
	}
	_ = c.sock.SetReadDeadline(time.Time{})
	c.renewFramer()
	c.headers.init(c.server.vocabulary, opts.MaxHeaderBytes)
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.out = appendServerPreface(c.out, opts.MaxStreams, opts.MaxHeaderBytes)
	c.ready = true
	mustLeave := c.mustLeave
	c.mu.Unlock()
	c.flush()
	if mustLeave {
		c.drain()
	}
	return nil
}

// Handshake performs the server's side of a handshake, for Options.Handshake.
func Handshake(creds credentials.TransportCredentials, raw net.Conn) (net.Conn, *tls.ConnectionState, error) {
	conn, info, err := creds.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	if t, ok := info.(credentials.TLSInfo); ok {
		return conn, &t.State, nil
	}
	return conn, nil, nil
}

// renewFramer creates a framer. The old one keeps memory for the longest frame that it has read.
func (c *reader) renewFramer() {
	c.framer = http2.NewFramer(nil, c.buf)
	c.framer.SetMaxReadFrameSize(maxFrame)
	c.large = false
}

func (c *reader) preface() error {
	for n := 1; n <= len(http2.ClientPreface); n++ {
		got, err := c.buf.Peek(n)
		if err != nil {
			return err
		}
		if got[n-1] != http2.ClientPreface[n-1] {
			c.answerHTTP1()
			return errPreface
		}
	}
	_, err := c.buf.Discard(len(http2.ClientPreface))
	return err
}

// answerHTTP1 answers an HTTP/1 client in HTTP/1.
func (c *reader) answerHTTP1() {
	seen, _ := c.buf.Peek(c.buf.Buffered())
	for _, method := range []string{"GET ", "HEAD ", "POST ", "PUT ", "PATCH ", "DELETE ", "OPTIONS "} {
		if bytes.HasPrefix(seen, []byte(method)) {
			_, _ = c.plain.Write([]byte(answerToHTTP1))
			c.sock.flushed()
			c.linger()
			return
		}
	}
}

// linger reads data that the client has already sent. The kernel resets a connection that is closed with unread bytes,
// and the client would not see the last answer.
func (c *conn) linger() {
	c.sock.closeWrite()
	_ = c.sock.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = io.CopyN(io.Discard, c.sock.Conn, 64<<10)
}
