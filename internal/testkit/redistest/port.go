package redistest

import (
	"errors"
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

// freeAddr returns an address without a listener. With bus, the second port of a cluster node is free too.
func freeAddr(bus bool) (string, error) {
	for range 1000 {
		port := firstPort + rand.IntN(ports)
		if isFree(port) && (!bus || isFree(port+busDistance)) {
			return addr(port), nil
		}
	}
	return "", errors.New("no free port found")
}

// FreeAddr returns an address of this machine without a listener. It stays free until something is started
// there: the system gives no connection a port of this range.
func FreeAddr(t testing.TB) string {
	t.Helper()
	a, err := freeAddr(false)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", addr(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func addr(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
