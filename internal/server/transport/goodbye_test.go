package transport

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// heard records the bytes that were read.
type heard struct {
	net.Conn
	all []byte
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	h.all = append(h.all, p[:n]...)
	return n, err
}

// An encrypted connection ends with an alert: without the alert a client must assume that an attacker cut the
// connection.
func TestEncryptedConnectionEndsWithAnAlert(t *testing.T) {
	pair := tlstest.NewAuthority(t, "transport").Issue(t, "127.0.0.1")
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	secure := func(o *Options) {
		o.Handshake = func(raw, _ net.Conn) (net.Conn, *tls.ConnectionState, error) {
			c := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{http2.NextProtoTLS}})
			if err := c.Handshake(); err != nil {
				return nil, nil, err
			}
			state := c.ConnectionState()
			return c, &state, nil
		}
	}
	for name, end := range map[string]func(*rawClient, *Server){
		"a stop": func(c *rawClient, s *Server) {
			go func() { _ = s.Shutdown(t.Context()) }()
			c.until("GOAWAY", c.asked)
			c.ok(c.fr.WritePing(true, drainPing))
		},
		"a protocol error": func(c *rawClient, _ *Server) { c.data(0, true, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			addr, s := start(t, echo{}, secure)
			raw, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			wire := &heard{Conn: raw}
			// With TLS 1.2, the type of a record can be seen.
			conn := tls.Client(wire, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{http2.NextProtoTLS}})
			c := rawOn(t, conn)
			c.echo(nil)
			end(c, s)
			for err := error(nil); err == nil; {
				err = c.read()
			}
			_ = conn.SetDeadline(time.Now())
			last := byte(0)
			for p := wire.all; len(p) >= 5; p = p[5+int(p[3])<<8+int(p[4]):] {
				last = p[0]
			}
			if last != 21 { // alert
				t.Errorf("the last record has type %d", last)
			}
		})
	}
}

func (c *rawClient) asked() bool {
	for _, e := range c.seen {
		if e.kind == http2.FramePing && e.ping == drainPing {
			return true
		}
	}
	return false
}
