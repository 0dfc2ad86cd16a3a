package servicetest

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	ratelimitv3common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// callTimeout is less than the time limits that a server has itself, so that no call ends because of those.
const callTimeout = 20 * time.Second

// Within returns a context for calls that may take 20 s in all, on a busy machine.
func Within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	t.Cleanup(cancel)
	return ctx
}

// Dial returns a connection to host:port, or to a unix socket's path, that is closed at the end of the test. It is not
// encrypted unless the options set it.
func Dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if filepath.IsAbs(addr) {
		addr = "unix:" + addr
	}
	conn, err := grpc.NewClient(addr, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
		opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Ask makes a request with one descriptor of these keys and values.
func Ask(domain string, pairs ...string) *ratelimitv3.RateLimitRequest {
	d := &ratelimitv3common.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3common.RateLimitDescriptor{d}}
}

// Get reads a page.
func Get(t testing.TB, url string) (code int, body string) {
	t.Helper()
	code, _, body = Send(t, http.MethodGet, url, nil)
	return code, body
}

// Send sends an HTTP request over a new connection.
func Send(t testing.TB, method, url string, body io.Reader) (code int, header http.Header, answer string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}
