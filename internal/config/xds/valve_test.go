package xds

import (
	"net"
	"sync"
	"testing"
)

// valve is a connection to a server that can stop carrying data, as if the server hung.
type valve struct {
	addr string

	mu   sync.Mutex
	flow *sync.Cond
	shut bool
	done bool
}

func newValve(t *testing.T, to string) *valve {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{addr: l.Addr().String()}
	v.flow = sync.NewCond(&v.mu)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to) //nolint:noctx // the test's own server
			if err != nil {
				in.Close()
				continue
			}
			conns.Go(func() { v.carry(in, out) })
			conns.Go(func() { v.carry(out, in) })
		}
	})
	t.Cleanup(func() {
		v.set(func() { v.done = true })
		l.Close()
		conns.Wait()
	})
	return v
}

func (v *valve) close() { v.set(func() { v.shut = true }) }
func (v *valve) open()  { v.set(func() { v.shut = false }) }

func (v *valve) set(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
	v.flow.Broadcast()
}

func (v *valve) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		v.mu.Lock()
		for v.shut && !v.done && err == nil {
			v.flow.Wait()
		}
		v.mu.Unlock()
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}
