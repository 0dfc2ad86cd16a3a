package redistest

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
)

// Answering starts a server that is not a Redis: it answers anything with the same bytes, and then sends others until
// the client hangs up. It speaks TLS if it has a configuration.
func Answering(t testing.TB, config *tls.Config, answer, then string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); l.Close(); wg.Wait() })
	more := []byte(then)
	if then != "" {
		more = bytes.Repeat(more, 1+(64<<10)/len(then))
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer context.AfterFunc(ctx, func() { c.Close() })()
				defer c.Close()
				for in := make([]byte, 64<<10); err == nil; {
					if _, err = c.Read(in); err == nil {
						_, err = c.Write([]byte(answer))
					}
					for then != "" && err == nil {
						_, err = c.Write(more)
					}
				}
			})
		}
	})
	return l.Addr().String()
}
