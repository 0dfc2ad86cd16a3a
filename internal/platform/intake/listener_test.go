package intake

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// running accepts connections of real clients.
type running struct {
	*Listener
	accepted chan *Conn
}

func listen(t *testing.T, o Options) *running {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if o.Metrics, err = NewMetrics(nil); err != nil {
		t.Fatal(err)
	}
	r := &running{Listen(raw, o), make(chan *Conn, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := r.Accept()
			if err != nil {
				return
			}
			r.accepted <- c.(*Conn)
		}
	}()
	t.Cleanup(func() {
		_ = r.Close()
		<-done
		close(r.accepted)
		for c := range r.accepted {
			_ = c.Close()
		}
	})
	return r
}

// dial connects from an address of this machine, which is a separate peer.
func (r *running) dial(t *testing.T, from string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// in connects and waits until the connection is accepted.
func (r *running) in(t *testing.T, from string) (net.Conn, *Conn) {
	t.Helper()
	c := r.dial(t, from)
	select {
	case accepted := <-r.accepted:
		t.Cleanup(func() { _ = accepted.Close() })
		return c, accepted
	case <-time.After(patience):
		t.Fatal("a connection is not accepted")
		return nil, nil
	}
}

// closed waits until the server has closed a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a connection stays open: %v", err)
	}
}

// open checks that a connection is still open: data from the server arrives.
func open(t *testing.T, c net.Conn, server *Conn) {
	t.Helper()
	if _, err := server.Write([]byte("x")); err != nil {
		t.Fatalf("write: %v", err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("read: %v", err)
	}
}

func TestPeerBeyondItsShareGivesWay(t *testing.T) {
	r := listen(t, Options{MaxConnections: 4, PeerShare: 0.5})
	calls := NewCalls(100, r.options.Metrics)
	var clients []net.Conn
	var servers []*Conn
	for range 4 { // one peer may have all while no other peer wants any
		c, s := r.in(t, "127.0.0.1")
		if _, ok := calls.Begin(s); !ok { // so that it is not idle
			t.Fatal("a call is rejected")
		}
		clients, servers = append(clients, c), append(servers, s)
	}
	closed(t, r.dial(t, "127.0.0.1")) // it already has its share

	_, second := r.in(t, "127.0.0.2")
	_, third := r.in(t, "127.0.0.2")
	for i, c := range clients[:2] {
		closed(t, c)
		_ = servers[i].Close()
	}
	for _, s := range []*Conn{second, third} {
		if _, ok := calls.Begin(s); !ok {
			t.Fatal("a call is rejected")
		}
	}
	// Both peers have their share now and use it: no connection is closed for a new one.
	closed(t, r.dial(t, "127.0.0.1"))
	closed(t, r.dial(t, "127.0.0.2"))
	closed(t, r.dial(t, "127.0.0.3"))
	for i := range 2 {
		open(t, clients[2+i], servers[2+i])
	}
}

func TestOldestIdleConnectionGivesWay(t *testing.T) {
	r := listen(t, Options{MaxConnections: 3, PeerShare: 1, Settled: time.Nanosecond})
	calls := NewCalls(100, r.options.Metrics)
	used := func(s *Conn) {
		call, ok := calls.Begin(s)
		if !ok {
			t.Fatal("a call is rejected")
		}
		calls.Arrived(&call, time.Now())
		calls.End(call)
	}
	first, s1 := r.in(t, "127.0.0.1")
	second, s2 := r.in(t, "127.0.0.1")
	third, _ := r.in(t, "127.0.0.1")
	used(s1)
	used(s2)
	used(s1)
	_, s4 := r.in(t, "127.0.0.1")
	closed(t, third) // it never made a call
	used(s4)
	_, s5 := r.in(t, "127.0.0.1")
	closed(t, second) // its last call is the oldest
	used(s5)
	open(t, first, s1)

	// A connection too young to have made a call is not replaced. Otherwise a client that connects continuously could
	// disconnect everyone.
	young := listen(t, Options{MaxConnections: 1, PeerShare: 1, Settled: time.Hour})
	c, s := young.in(t, "127.0.0.1")
	closed(t, young.dial(t, "127.0.0.1"))
	open(t, c, s)
}

// A full listener examines a bounded number of connections.
func TestFullListenerFindsItsOldestInManyThatAreInUse(t *testing.T) {
	r := listen(t, Options{MaxConnections: 60, PeerShare: 1, Settled: time.Nanosecond})
	calls := NewCalls(1_000, r.options.Metrics)
	for range 59 {
		_, s := r.in(t, "127.0.0.1")
		if _, ok := calls.Begin(s); !ok {
			t.Fatal("a call is rejected")
		}
	}
	idle, _ := r.in(t, "127.0.0.1")
	rejected := 0
	for range 2 { // the first search may end before the idle connection; the next one continues there
		c := r.dial(t, "127.0.0.1")
		select {
		case s := <-r.accepted:
			_ = s.Close()
			closed(t, idle)
			return
		case <-time.After(patience):
			t.Fatal("neither accepted nor rejected")
		case <-ended(c):
			rejected++
		}
	}
	t.Errorf("rejected %d times, though one connection is idle", rejected)
}

func ended(c net.Conn) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Read(make([]byte, 1))
	}()
	return done
}

func TestTimeBounds(t *testing.T) {
	c := &Conn{accepted: 1000}
	o := &Options{FirstCall: 100, Write: 100}
	if why := c.late(1100, o); why != inTime {
		t.Errorf("at the bound: %v", reasons[why])
	}
	if why := c.late(1101, o); why != noCall {
		t.Errorf("without a call: %q", reasons[why])
	}
	c.last.Store(1050)
	if why := c.late(math.MaxInt64, o); why != inTime {
		t.Errorf("after a call: %q", reasons[why])
	}
	c.writing.Store(2000)
	if why := c.late(2100, o); why != inTime {
		t.Errorf("a write: %q", reasons[why])
	}
	if why := c.late(2101, o); why != notReading {
		t.Errorf("a long write: %q", reasons[why])
	}
}

func TestPeers(t *testing.T) {
	for _, tt := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 1}, "10.1.2.3"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:10.1.2.3"), Port: 2}, "10.1.2.3"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6"), Port: 1}, "2001:db8:1:2::/64"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}, "fe80::/64"},
		{&net.UnixAddr{Name: "", Net: "unix"}, "unix"},
	} {
		if got := PeerOf(tt.addr); got != tt.want {
			t.Errorf("%v is of %s, want %s", tt.addr, got, tt.want)
		}
	}
}

// All listeners together take connections from the budget. Without room, a new connection replaces an unused one.
func TestConnectionsTakeFromTheBudget(t *testing.T) {
	places := NewBudget(100).Class("connections", 0)
	o := Options{MaxConnections: 100, PeerShare: 0.5, Settled: time.Nanosecond, Places: places, Size: 25, Request: 10}
	one, two := listen(t, o), listen(t, o)
	first, _ := one.in(t, "127.0.0.1")
	_, busy := one.in(t, "127.0.0.2")
	one.in(t, "127.0.0.3")
	other, _ := two.in(t, "127.0.0.1")
	if held := places.Held(); held != 100 {
		t.Errorf("four connections hold %d bytes, want 100", held)
	}
	calls := NewCalls(100, one.options.Metrics)
	if _, ok := calls.Begin(busy); !ok {
		t.Fatal("a call is rejected")
	}
	_, fifth := one.in(t, "127.0.0.4")
	closed(t, first)
	if held := places.Held(); held != 100 {
		t.Errorf("after one was replaced, they hold %d bytes, want 100", held)
	}
	_ = other.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := other.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a listener has closed a connection of another one: %v", err)
	}

	fifth.BeginBody()
	fifth.BeginBody()
	if held := places.Held(); held != 110 {
		t.Errorf("with a request they hold %d bytes, want 110", held)
	}
	_ = fifth.Close()
	fifth.EndRequest()
	fifth.EndRequest()
	if held := places.Held(); held != 75 {
		t.Errorf("after one was closed, they hold %d bytes, want 75", held)
	}
}

// A peer may have half of the connections that the budget reserves.
func TestPeerKeepsHalfOfWhatTheBudgetReserves(t *testing.T) {
	places := NewBudget(100).Class("connections", 50)
	r := listen(t, Options{MaxConnections: 100, PeerShare: 0.5, Settled: time.Hour, Places: places, Size: 25})
	for range 4 {
		r.in(t, "127.0.0.1")
	}
	r.in(t, "127.0.0.2") // replaces one of the larger peer, although it is too young to be idle
	if held := places.Held(); held != 100 {
		t.Errorf("they hold %d bytes, want 100", held)
	}
	closed(t, r.dial(t, "127.0.0.1"))
}

// Clients that send more than can be processed take turns: none is read until the runtime interrupts it.
func TestBusyConnectionsTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const connections, reads, size = 10, 20, 4 << 10
	r := listen(t, Options{})
	var servers []*Conn
	for range connections {
		client, server := r.in(t, "127.0.0.1")
		if _, err := client.Write(make([]byte, reads*size)); err != nil { // the kernel keeps it
			t.Fatal(err)
		}
		servers = append(servers, server)
	}
	var mu sync.Mutex
	var order []int
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() {
			p := make([]byte, size)
			for range reads {
				if _, err := io.ReadFull(s, p); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	again := 0
	for i := range order[1:] {
		if order[i] == order[i+1] {
			again++
		}
	}
	if again > len(order)/4 {
		t.Errorf("%d of %d reads follow one of the same connection", again, len(order))
	}
}
