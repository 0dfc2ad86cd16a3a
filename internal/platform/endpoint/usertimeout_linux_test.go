package endpoint

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Settings of the listener apply to the connections that it accepts.
func TestConnectionsGiveUp(t *testing.T) {
	const timeout = 10 * time.Second
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen("gRPC", "127.0.0.1:0", timeout)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var ms int
	if err := raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); err != nil {
		t.Fatal(err)
	}
	if got := time.Duration(ms) * time.Millisecond; err != nil || got != timeout {
		t.Errorf("they give up after %v, %v; want %v", got, err, timeout)
	}
}
