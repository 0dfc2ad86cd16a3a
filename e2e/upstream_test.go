package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// upstream is what the limits protect. It says hello, and counts whom it said it to.
type upstream struct {
	addr   string
	served atomic.Int64
}

func startUpstream(t *testing.T) *upstream {
	t.Helper()
	u := new(upstream)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.served.Add(1)
		_, _ = fmt.Fprintln(w, "hello")
	}))
	t.Cleanup(server.Close)
	u.addr = server.Listener.Addr().(*net.TCPAddr).String()
	return u
}
