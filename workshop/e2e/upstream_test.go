package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

	mu      sync.Mutex
	arrived []arrival
}

// arrival is a request that reached the upstream.
type arrival struct {
	at        time.Time
	path, via string // via is a parameter of the request
	header    http.Header
}

// arrivals returns the requests since the last call, in the order of their arrival.
func (u *upstream) arrivals() []arrival {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.arrived
	u.arrived = nil
	return all
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

// startUpstream starts an upstream that answers hello. /.../bytes?n=100 sends this number of bytes, and a request whose
// path ends in /hold waits until it is released. Requests whose path ends in /arrival are recorded.
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
	mux.HandleFunc("/{route}/arrival", func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.arrived = append(u.arrived, arrival{time.Now(), r.URL.Path, r.URL.Query().Get("via"), r.Header})
		_, _ = fmt.Fprintln(w, "hello")
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	u.addr = server.Listener.Addr().String()
	return u
}
