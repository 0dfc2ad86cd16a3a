package intake

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// An unfinished handshake is replaced by a new one, first a handshake of the peer with the most.
func TestUnfinishedHandshakesMakeRoom(t *testing.T) {
	r := listen(t, Options{MaxConnections: 40, Encrypted: true}) // 20 handshakes, 10 of a peer
	secured, server := r.in(t, "127.0.0.1")
	server.Secured()
	var one, two []net.Conn
	for range 12 {
		c, _ := r.in(t, "127.0.0.1")
		one = append(one, c)
	}
	closed(t, one[0]) // a peer has at most half
	closed(t, one[1])
	for range 10 {
		c, _ := r.in(t, "127.0.0.2")
		two = append(two, c)
	}
	var last []*Conn
	var clients []net.Conn
	for range 2 { // the peers with ten make room: the larger one first
		c, s := r.in(t, "127.0.0.3")
		clients, last = append(clients, c), append(last, s)
	}
	closed(t, one[2])
	closed(t, two[0])
	for i, c := range clients {
		open(t, c, last[i])
	}
	open(t, secured, server)
	for _, s := range last {
		_ = s.Close()
	}
	if n := r.handshakes.open.Len(); n != 18 {
		t.Errorf("%d handshakes count as unfinished, 18 are", n)
	}
}

// hello does a handshake with the listener.
func hello(c net.Conn, config *tls.Config) chan error {
	ended := make(chan error, 1)
	go func() { ended <- tls.Client(c, config).Handshake() }()
	return ended
}

// The peers take turns with handshakes: those of one address do not delay those of another.
func TestPeersTakeTurnsInHandshakes(t *testing.T) {
	ca := tlstest.NewAuthority(t, "ca")
	arrived := make(chan string)
	proceed := make(chan struct{})
	config := &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, "rl.test").TLS(t)}}
	config.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		arrived <- PeerOf(h.Conn.RemoteAddr())
		<-proceed
		return nil, nil
	}
	r := listen(t, Options{MaxConnections: 100, Encrypted: true})
	r.handshakes.free = 1
	trusting := &tls.Config{RootCAs: ca.Pool(), ServerName: "rl.test"}
	var ended []chan error
	begin := func(from string) (net.Conn, *Conn) {
		t.Helper()
		client, server := r.in(t, from)
		go func() {
			if tls.Server(server, config).Handshake() == nil {
				server.Secured()
			}
		}()
		ended = append(ended, hello(client, trusting))
		return client, server
	}
	waiting := func(n int) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			r.handshakes.mu.Lock()
			now := 0
			for e := r.handshakes.await.Front(); e != nil; e = e.Next() {
				now += e.Value.(*peer).handshakes.await.Len()
			}
			r.handshakes.mu.Unlock()
			if now == n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d handshakes wait for a turn, want %d", now, n)
			}
			<-time.After(time.Millisecond)
		}
	}
	begin("127.0.0.1")
	order := []string{<-arrived}
	for i := range 10 {
		begin("127.0.0.1")
		waiting(i + 1)
	}
	begin("127.0.0.2")
	waiting(11)
	_, leaves := begin("127.0.0.3") // closed before its turn
	waiting(12)
	_ = leaves.Close()
	waiting(11)
	for range 11 {
		proceed <- struct{}{}
		order = append(order, <-arrived)
	}
	proceed <- struct{}{}
	if i := slices.Index(order, "127.0.0.2"); i < 0 || i > 2 {
		t.Errorf("the other peer is not among the first three: %v", order)
	}
	for i, c := range ended {
		if err := <-c; (err != nil) != (i == len(ended)-1) {
			t.Errorf("handshake %d: %v", i, err)
		}
	}
	free := func() int {
		r.handshakes.mu.Lock()
		defer r.handshakes.mu.Unlock()
		return r.handshakes.free
	}
	for began := time.Now(); free() != 1; { // a client's handshake ends before the server's
		if time.Since(began) > patience {
			t.Fatalf("%d turns are free in the end, want 1", free())
		}
		<-time.After(time.Millisecond)
	}
}

// A handshake that waits for a turn ends when it is replaced.
func TestHandshakeThatMakesRoomIsNotWorkedOn(t *testing.T) {
	r := listen(t, Options{MaxConnections: 4, Encrypted: true}) // two handshakes, one of a peer
	r.handshakes.free = 0
	c, s := r.in(t, "127.0.0.1")
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := s.Read(make([]byte, 1))
		read <- err
	}()
	r.in(t, "127.0.0.1")
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the read ends with %v", err)
	}
}
