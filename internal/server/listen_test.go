package server

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
)

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rl.sock")
	r := start(t, Options{Listen: Listen{Socket: path, SocketMode: 0o660}})
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Fatal(err)
	}
	if got := r.GRPCAddr.String(); got != path {
		t.Errorf("it listens on %s", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	// A server already listens on the socket: a second one must not take it over.
	_, err = New(Options{Decider: decider(passAll), Listen: Listen{Socket: path, HTTP: "127.0.0.1:0"}})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), path) {
		t.Errorf("a second server: %v", err)
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Errorf("after the second server: %v", err)
	}

	r.stop()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

// A killed process leaves the file of its socket behind.
func TestUnixSocketOfADeadProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rl.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{Listen: Listen{Socket: path}})
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Error(err)
	}
}

func TestUnixSocketLeavesOtherFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Decider: decider(passAll), Listen: Listen{Socket: path, HTTP: "127.0.0.1:0"}}); err == nil {
		t.Error("no error")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file: %q, %v", b, err)
	}
}

func TestTooManyConnectionsAreRejected(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry}, Options{Connections: Connections{Max: 2}})
	open := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", r.GRPCAddr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	greeted := func(c net.Conn) bool { // the server sends its settings
		_, _ = io.WriteString(c, http2.ClientPreface) // fails on a connection that is rejected
		_, err := c.Read(make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("neither greeted nor rejected")
		}
		return err == nil
	}
	var first *grpc.ClientConn
	for range 2 { // each keeps a call in flight: busy connections do not make room for new ones
		first = dial(t, r.GRPCAddr)
		stream, err := healthv1.NewHealthClient(first).Watch(within(t), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal("one of the first two was rejected:", err)
		}
	}
	for range 2 {
		if greeted(open()) {
			t.Error("one too many was greeted")
		}
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_connections{listener=grpc}`:                              2,
		`ratelimitd_connections_closed_total{listener=grpc reason=too_many}`: 2,
		`ratelimitd_connections_closed_total{listener=http reason=too_many}`: 0,
	})
	if n := strings.Count(r.log.String(), "too many connections"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
	if code, _ := get(t, r.HTTPAddr, "/livez"); code != 200 {
		t.Errorf("HTTP, which has a bound of its own: %d", code)
	}

	_ = first.Close()
	deadline := time.Now().Add(patience)
	for !greeted(open()) { // wait until the server notices that one connection is closed
		if time.Now().After(deadline) {
			t.Fatal("the place of a closed connection is not given away")
		}
	}
}
