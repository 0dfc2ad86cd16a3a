package xds

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel notices a vanished machine on connections that gRPC has dialled.
func TestConnectionsAreKeptAliveByTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := (&net.Dialer{KeepAlive: -1}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	conn, _, err := transport{}.ClientHandshake(t.Context(), "x", dialled)
	if err != nil || conn != dialled {
		t.Fatal(conn, err)
	}
	raw, err := dialled.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]struct{ level, option, want int }{
		"on":       {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"idle":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		"interval": {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5},
		"count":    {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
	} {
		var got int
		var failed error
		if err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), option.level, option.option) }); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		if got != option.want {
			t.Errorf("%s is %d, want %d", name, got, option.want)
		}
	}
}
