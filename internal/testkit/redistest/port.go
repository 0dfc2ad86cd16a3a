package redistest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

const (
	host = "127.0.0.1"

	// Ports are chosen below those that the system gives to outgoing connections: one that a server has left for a
	// moment (Kill, Restart) is not taken by another connection in between.
	firstPort, ports = 10000, 12000
	busDistance      = 10000 // a cluster node's second port is this much higher
)

// FreeAddr returns an address of this machine without a listener, which no other test is given before this one ends.
func FreeAddr(t testing.TB) string { return freeAddr(t, false) }

// freeAddr is FreeAddr. With bus, the second port of a cluster node is free too.
func freeAddr(t testing.TB, bus bool) string {
	t.Helper()
	for range 1000 {
		if port := firstPort + rand.IntN(ports); reserve(t, port) && (!bus || reserve(t, port+busDistance)) {
			return addr(port)
		}
	}
	t.Fatal("no free port found")
	return ""
}

// reserve reserves a port that has no listener. Packages are tested by separate processes, so the reservation is
// something that the system knows: the UDP port of the same number, which only reserve opens.
func reserve(t testing.TB, port int) bool {
	u, err := net.ListenPacket("udp", addr(port)) //nolint:noctx // does not wait
	if err != nil {
		return false
	}
	l, err := net.Listen("tcp", addr(port)) //nolint:noctx // closed immediately
	if err != nil {
		_ = u.Close()
		return false
	}
	t.Cleanup(func() { _ = u.Close() })
	return l.Close() == nil
}

func addr(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
