package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
)

// With Envoy's headers, each call has a different trace context.
func TestLoadSendsEnvoysHeaders(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	traces := make(map[string]int)
	g := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, id := range metadata.ValueFromIncomingContext(ctx, "x-b3-traceid") {
			traces[id]++
		}
		return next(ctx, req)
	}))
	ratelimitv3.RegisterRateLimitServiceServer(g, answering{answer: allow})
	go func() { _ = g.Serve(l) }() // ends with Stop
	t.Cleanup(g.Stop)
	p := newPayload(5, 1)
	p.envoy, p.tracing = true, envoytest.Zipkin
	all := dialed(t, l.Addr().String(), p)
	r, err := all.run(t.Context(), 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	calls, want := 0, 0
	for _, n := range traces {
		calls += n
	}
	for _, c := range all.connections {
		want += min(int(c.Stream+1)/2, len(c.first)+len(c.repeated))
	}
	if int64(calls) != r.answered || len(traces) != want {
		t.Errorf("of %d calls %d had a trace; %d different traces, want %d", r.answered, calls, len(traces), want)
	}
}

// Every shape is measured in each round, and has a row. Shapes with the same setup share a server.
func TestShapes(t *testing.T) {
	address, _ := serve(t, allow)
	self, err := startProcess("/bin/sleep", []string{"60"}, nil, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = self.stop() })
	targets, runs, err := shapeTargets("1 connection|half|Zipkin|^100 rules|Cluster", "")
	if err != nil || len(targets) != 5 || len(runs) != 11 {
		t.Fatalf("%d targets, %d runs, %v", len(targets), len(runs), err)
	}
	for _, x := range targets {
		x.redis = false // the test starts no Redis
		x.addresses, x.servers = []string{address}, []*process{self}
	}
	var out strings.Builder
	o := &options{rounds: 2, duration: 20 * time.Millisecond, connections: 2, inFlight: 4, keys: 5, descriptors: 1}
	if err := measureShapes(t.Context(), &out, o, runs); err != nil {
		t.Fatal(err)
	}
	if err := reportShapes(&out, o, cores{}, runs); err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if len(r.rounds) != 2 || r.rounds[1].load.answered == 0 {
			t.Errorf("%s: %d rounds", r.name, len(r.rounds))
		}
		if !strings.Contains(out.String(), "| "+r.name+" ") {
			t.Errorf("%s has no row:\n%s", r.name, out.String())
		}
	}
	if _, _, err := shapeTargets("(", ""); err == nil {
		t.Error("a wrong expression is accepted")
	}
}

// The other program reads the same rules and settings. This service can be the other program too.
func TestOtherProgram(t *testing.T) {
	targets, runs, err := shapeTargets("mTLS|Cluster", "elsewhere/ratelimitd")
	if err != nil || len(targets) != 8 || len(runs) != 8 {
		t.Fatalf("%d targets, %d runs, %v", len(targets), len(runs), err)
	}
	dir := t.TempDir()
	if err := build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	x := targets[5]
	if !x.other || !x.redis || x.binary != "elsewhere/ratelimitd" {
		t.Fatalf("the full load is measured on %+v", x)
	}
	x.redis, x.binary = false, filepath.Join(dir, "ratelimitd")
	x.env = append(x.env, "BACKEND_TYPE=memory")
	o := &options{rounds: 1, duration: 20 * time.Millisecond, connections: 2, inFlight: 4, keys: 5, descriptors: 1}
	t.Cleanup(func() { _ = x.stop() })
	if err := x.start(t.Context(), dir, o, cores{}); err != nil {
		t.Fatal(err)
	}
	m, err := measure(t.Context(), x, o, newPayload(o.keys, 1))
	if err != nil || m.load.answered == 0 {
		t.Errorf("%d answers, %v", m.load.answered, err)
	}
}
