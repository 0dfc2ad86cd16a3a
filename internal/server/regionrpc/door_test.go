package regionrpc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// strangers opens connections from an address, which show no certificate until the test ends. Every other one begins a handshake.
func strangers(t *testing.T, from, at string, n int) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for i := range n {
		c, err := dialer.DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if i%2 == 0 {
			_, _ = c.Write([]byte{22, 3, 1, 2, 0, 1}) // it may have been closed
		}
	}
}

// Regions are answered while others hold as many connections as the port has places, and never show a certificate.
func TestStrangers(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		t.Run("from "+from, func(t *testing.T) {
			at, _ := serve(t, theirs, "127.0.0.1:0", answers{answer: used})
			strangers(t, from, at, maxConnections)
			for i := range 3 {
				replies, err := dial(t, ours, at, nil).Exchange(waiting(t), "eu", 1, []regions.Query{ask("a", 3)})
				if err != nil || replies[0].Outcome.Used != 3 {
					t.Errorf("call %d: %v %v", i, replies, err)
				}
			}
		})
	}
}

// Of the connections without a certificate, the door closes the oldest of the address that has most.
func TestDoor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l}
	t.Cleanup(func() { _ = d.Close() })
	come := func(from string) (theirs net.Conn, ours *visitor) {
		t.Helper()
		theirs, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = theirs.Close() })
		c, err := d.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return theirs, c.(*visitor)
	}
	closed := func(c net.Conn) bool {
		_, err := c.Read(make([]byte, 1))
		return errors.Is(err, io.EOF)
	}
	var all []net.Conn
	var ours []*visitor
	for i := range maxStrangers {
		from := "127.0.0.2"
		if i%8 == 0 {
			from = fmt.Sprintf("127.0.1.%d", i)
		}
		theirs, v := come(from)
		all, ours = append(all, theirs), append(ours, v)
	}
	if err := ours[0].enter(); err != nil { // which makes room for one
		t.Error(err)
	}
	come("127.0.0.3")
	_, last := come("127.0.0.4")
	if !closed(all[1]) || ours[1].enter() == nil {
		t.Error("the oldest of the address with most connections is open")
	}
	if err := last.enter(); err != nil {
		t.Error(err)
	}
	for range 2 { // a connection may be closed twice
		_ = last.Close()
		_ = ours[2].Close()
	}
	if d.inside != 1 || len(d.waiting) != maxStrangers-2 {
		t.Errorf("%d inside, %d wait", d.inside, len(d.waiting))
	}
	d.inside = maxConnections
	if err := ours[3].enter(); err == nil {
		t.Error("one too many came in")
	}
	if d.inside = 1; ours[3].enter() != nil {
		t.Error("it may not come in when there is room again")
	}
}
