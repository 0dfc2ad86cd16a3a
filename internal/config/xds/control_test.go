package xds

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute // timeout for events that take milliseconds on a quiet machine
	nodeID   = "test-node"
)

// control is a go-control-plane server with its snapshot cache, on a socket.
type control struct {
	t     *testing.T
	addr  string
	cache cachev3.SnapshotCache
	grpc  *grpc.Server

	mu       sync.Mutex
	requests []request
	headers  []metadata.MD // headers of every stream
}

// request is a request of a client, with its time.
type request struct {
	*discoveryv3.DiscoveryRequest
	stream int64
	at     time.Time
}

// newControl starts a server without a snapshot, on a free port if addr is empty.
func newControl(t *testing.T, addr string, opts ...grpc.ServerOption) *control {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr) //nolint:noctx // it is closed with the server
	if err != nil {
		t.Fatal(err)
	}
	c := &control{t: t, addr: l.Addr().String(), cache: cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil), grpc: grpc.NewServer(opts...)}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(c.grpc, serverv3.NewServer(context.Background(), c.cache, c))
	done := make(chan error, 1)
	go func() { done <- c.grpc.Serve(l) }()
	t.Cleanup(func() {
		c.grpc.Stop()
		if err := <-done; err != nil {
			t.Errorf("the xDS server: %v", err)
		}
	})
	return c
}

// set activates a snapshot.
func (c *control) set(version string, all ...types.Resource) {
	c.t.Helper()
	snapshot, err := cachev3.NewSnapshot(version, map[resourcev3.Type][]types.Resource{resourcev3.RateLimitConfigType: all})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.cache.SetSnapshot(c.t.Context(), nodeID, snapshot); err != nil {
		c.t.Fatal(err)
	}
}

func (c *control) OnStreamOpen(ctx context.Context, _ int64, _ string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = append(c.headers, md)
	return nil
}

func (c *control) OnStreamRequest(stream int64, r *discoveryv3.DiscoveryRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, request{proto.Clone(r).(*discoveryv3.DiscoveryRequest), stream, time.Now()})
	return nil
}

func (*control) OnStreamClosed(int64, *corev3.Node) {}
func (*control) OnStreamResponse(context.Context, int64, *discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {
}
func (*control) OnFetchRequest(context.Context, *discoveryv3.DiscoveryRequest) error { return nil }
func (*control) OnFetchResponse(*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {
}
func (*control) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }
func (*control) OnDeltaStreamClosed(int64, *corev3.Node)                {}
func (*control) OnStreamDeltaRequest(int64, *discoveryv3.DeltaDiscoveryRequest) error {
	return nil
}
func (*control) OnStreamDeltaResponse(int64, *discoveryv3.DeltaDiscoveryRequest, *discoveryv3.DeltaDiscoveryResponse) {
}

// seen returns the requests so far.
func (c *control) seen() []request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]request(nil), c.requests...)
}

// acked waits until the client has acknowledged a version.
func (c *control) acked(version string) {
	c.t.Helper()
	await(c.t, "ACK of "+version, func() bool {
		for _, r := range c.seen() {
			if r.GetVersionInfo() == version && r.GetErrorDetail() == nil && r.GetResponseNonce() != "" {
				return true
			}
		}
		return false
	})
}

// nacks returns the requests that reject something.
func (c *control) nacks() (all []request) {
	for _, r := range c.seen() {
		if r.GetErrorDetail() != nil {
			all = append(all, r)
		}
	}
	return all
}

// await waits for a condition.
func await(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); !reached(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// running is a client under Run.
type running struct {
	*Client
	t       *testing.T
	log     *logged
	mu      sync.Mutex
	results []config.Result
}

// impatient returns options with short waits.
func impatient(server string) Options {
	return Options{
		Server: server, NodeID: nodeID,
		ConnectRetry:  20 * time.Millisecond,
		Backoff:       Backoff{Initial: 20 * time.Millisecond, Max: 100 * time.Millisecond, Factor: 0.5},
		RejectedRetry: 20 * time.Millisecond, RejectedRetryMax: 100 * time.Millisecond,
	}
}

// run starts a client. It stops at the end of the test.
func run(t *testing.T, o Options) *running {
	t.Helper()
	r := &running{t: t, log: new(logged)}
	o.Logger = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	r.Client = c
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, r.apply) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of the client:\n%s", r.log)
		}
	})
	return r
}

func (r *running) apply(result config.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, result)
}

// tree returns the active rules, or nil before the first.
func (r *running) tree() *descriptor.Tree {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.results) == 0 {
		return nil
	}
	return r.results[len(r.results)-1].Tree
}

// applied returns how often rules were activated.
func (r *running) applied() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.results)
}

// inForce waits until these rules are active: one line each, with the first limit.
func (r *running) inForce(want ...string) {
	r.t.Helper()
	var got string
	defer func() {
		if r.t.Failed() {
			r.t.Logf("in force: %q, want %q", got, want)
		}
	}()
	await(r.t, fmt.Sprintf("rules %q", want), func() bool {
		tree := r.tree()
		if tree == nil {
			return false
		}
		got = strings.Join(lines(tree), "\n")
		return got == strings.Join(want, "\n")
	})
}

func lines(tree *descriptor.Tree) (all []string) {
	for _, x := range tree.Rules {
		line := x.Path
		for i := range x.Limits {
			line += fmt.Sprintf(" %d/%s", x.Limits[i].Requests, x.Limits[i].Window.Unit)
		}
		all = append(all, line)
	}
	return all
}

// state returns the status of a resource.
func (r *running) state(name string) descriptor.FileStatus {
	for _, f := range r.Files() {
		if f.Name == name {
			return f
		}
	}
	return descriptor.FileStatus{}
}

// logged is a log that one goroutine writes and another reads.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// perDay is a resource with one rule.
func perDay(name, domain, key string, requests uint32) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: name, Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Key: key, RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_DAY, RequestsPerUnit: requests},
	}}}
}
