package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// upstream is the server that the limits protect. It counts the requests it served.
type upstream struct {
	addr   string
	served atomic.Int64

	held    atomic.Int64  // requests that wait
	release chan struct{} // each value lets one request continue
}

// startGRPCUpstream starts an upstream that speaks gRPC and offers the health service.
func startGRPCUpstream(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthv1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// startUpstream starts an upstream. It says hello. /.../bytes?n=100 sends this number of bytes, and a request whose path
// ends in /hold waits until it is released.
func startUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{release: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		u.served.Add(1)
		_, _ = fmt.Fprintln(w, "hello")
	})
	mux.HandleFunc("/{route}/bytes", func(w http.ResponseWriter, r *http.Request) {
		u.served.Add(1)
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		_, _ = w.Write(bytes.Repeat([]byte("x"), n))
	})
	mux.HandleFunc("/{route}/hold", func(w http.ResponseWriter, r *http.Request) {
		u.held.Add(1)
		defer u.held.Add(-1)
		select {
		case <-u.release:
		case <-r.Context().Done():
			return
		}
		u.served.Add(1)
		_, _ = fmt.Fprintln(w, "hello at last")
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	u.addr = server.Listener.Addr().String()
	return u
}
