package servicetest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Relay is one address in front of several processes, as a Service of Kubernetes is: each new connection leads to the
// next process that accepts one.
type Relay struct {
	Addr string

	mu   sync.Mutex
	to   []string
	next int
}

// StartRelay starts a relay to these addresses. It ends with the test.
func StartRelay(t testing.TB, to ...string) *Relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	r := &Relay{Addr: l.Addr().String(), to: to}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	return r
}

// To replaces the addresses for new connections. Open connections stay.
func (r *Relay) To(addresses ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = addresses
}

// addresses are all addresses, in the order in which they are tried.
func (r *Relay) addresses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	first := r.next % len(r.to)
	return append(append([]string(nil), r.to[first:]...), r.to[:first]...)
}

func (r *Relay) pass(c net.Conn) {
	defer func() { _ = c.Close() }()
	for _, address := range r.addresses() {
		server, err := net.Dial("tcp", address) //nolint:noctx // address is on this machine
		if err != nil {
			continue
		}
		go func() {
			_, _ = io.Copy(server, c)
			_ = server.Close()
		}()
		_, _ = io.Copy(c, server)
		_ = server.Close()
		return
	}
}
