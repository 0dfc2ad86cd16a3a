package regionrpc

import (
	"net"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// strangers opens connections from an address, which show no certificate until the test ends. Every other one starts a
// handshake.
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

// Regions are answered while strangers use as many connections as the port has places, and never show a certificate.
func TestStrangers(t *testing.T) {
	ca := tlstest.NewAuthority(t, "regions")
	theirs, _ := filesOf(t, ca, uri("eu"))
	ours, _ := filesOf(t, ca, uri("us"))
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		t.Run("from "+from, func(t *testing.T) {
			at, _ := serve(t, theirs, "127.0.0.1:0", used)
			strangers(t, from, at, maxConnections)
			for i := range 3 {
				answers, err := asked(t, dial(t, ours, at, nil), ask("a", 3))
				if err != nil || answers[0].Outcomes[0].Used != 3 {
					t.Errorf("call %d: %v %v", i, answers, err)
				}
			}
		})
	}
}

// Each region has separate places, which it can use again.
func TestDoor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l, share: 2}
	t.Cleanup(func() { _ = d.Close() })
	var ours []*visitor
	for range 4 {
		theirs, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = theirs.Close() })
		c, err := d.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ours = append(ours, c.(*visitor))
	}
	for i, v := range ours[:3] {
		if err := v.enter("us"); (err == nil) != (i < 2) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if err := ours[3].enter("ap"); err != nil || d.count() != 3 {
		t.Errorf("the connections of one region keep out another: %v, %d inside", err, d.count())
	}
	for range 2 { // a connection may be closed twice
		_ = ours[0].Close()
	}
	if err := ours[2].enter("us"); err != nil || d.count() != 3 {
		t.Errorf("%v, %d inside", err, d.count())
	}
	if err := ours[0].enter("us"); err == nil {
		t.Error("a closed connection has come in")
	}
}
