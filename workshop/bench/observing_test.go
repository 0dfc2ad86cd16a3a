package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

func TestReportObserving(t *testing.T) {
	all := observingTargets()
	base, observed := all[0], all[5]
	// Two rounds at 10 us, one that something else disturbed; the observed one costs 5 % more in each but one.
	base.rounds = []measurement{round(100_000, 1, 0), round(100_000, 1, 0), round(100_000, 4, 0)}
	observed.rounds = []measurement{round(100_000, 1.05, 0), round(100_000, 1.5, 0), round(100_000, 4.2, 0)}
	var out strings.Builder
	o := &options{rounds: 3, duration: 60 * time.Millisecond, connections: 8, inFlight: 16, keys: 10, descriptors: 1}
	if err := reportObserving(&out, o, []*target{base, observed}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| n   | nothing observed              | 10.00     |               |                    |",
		"| o   | metrics, hot keys and tracing | 15.00     | +5.0 %        | +5.0 to +50.0 %    |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	observed.rounds = observed.rounds[1:]
	if err := reportObserving(&out, o, []*target{base, observed}); err == nil {
		t.Error("missing rounds are not reported")
	}
}

// The targets differ only in what is observed: each thing is off in the first and on in the last.
func TestObservingTargets(t *testing.T) {
	all := observingTargets()
	env := func(id string) []string {
		i := slices.IndexFunc(all, func(x *target) bool { return x.id == id })
		if i < 0 {
			t.Fatalf("no target %s", id)
		}
		return all[i].env
	}
	for id, want := range map[string][]string{
		"n": {"RATELIMITD_NO_METRICS=true", "RATELIMITD_HOT_KEYS=0"},
		"o": {"TRACING_ENABLED=true", "TRACING_SAMPLING_RATE=0"},
	} {
		if !slices.Equal(env(id), want) {
			t.Errorf("(%s) has %q, want %q", id, env(id), want)
		}
	}
	if !slices.Equal(env("n"), env("n2")) {
		t.Error("what shows the noise is another target")
	}
}

// Every round measures every target, over connections that stay, with a trace that is not sampled.
func TestObserve(t *testing.T) {
	traces := make(chan string, 1<<16)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		select {
		case traces <- strings.Join(metadata.ValueFromIncomingContext(ctx, "traceparent"), " "):
		default:
		}
		return next(ctx, req)
	}))
	ratelimitv3.RegisterRateLimitServiceServer(g, answering{answer: allow})
	go func() { _ = g.Serve(l) }() // ends with Stop
	t.Cleanup(g.Stop)

	self, err := startProcess("/bin/sleep", []string{"60"}, nil, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = self.stop() })
	targets := []*target{{id: "x", peers: peers{addresses: []string{l.Addr().String()}}, servers: []*process{self}}, {id: "y", peers: peers{addresses: []string{l.Addr().String()}}, servers: []*process{self}}}
	o := &options{rounds: 3, duration: 20 * time.Millisecond, connections: 2, inFlight: 4, traceparent: unsampled}
	if err := observe(t.Context(), o, targets, newPayload(5, 1)); err != nil {
		t.Fatal(err)
	}
	for _, x := range targets {
		if len(x.rounds) != o.rounds || x.rounds[0].load.answered == 0 {
			t.Errorf("%s: %d rounds, the first with %d answers", x.id, len(x.rounds), x.rounds[0].load.answered)
		}
	}
	close(traces)
	for trace := range traces {
		if trace != unsampled {
			t.Fatalf("a call has the trace %q", trace)
		}
	}
}

// CPU time is more exact than the hundredths of a second of /proc.
func TestCPUTime(t *testing.T) {
	p, err := startProcess("/bin/sh", []string{"-c", "while :; do :; done"}, nil, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := true
	var last float64
	for deadline := time.Now().Add(20 * time.Second); last < 0.05; {
		if time.Now().After(deadline) {
			t.Fatalf("a process that is always busy has used %v s", last)
		}
		now, err := cpuOf(p.pid())
		if err != nil || now < last {
			t.Fatalf("%v s after %v s, %v", now, last, err)
		}
		whole = whole && now*100 == float64(int(now*100))
		last = now
	}
	if whole {
		t.Error("CPU time comes in hundredths of a second")
	}
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := cpuOf(p.pid()); err == nil {
		t.Error("a process that has ended has CPU time")
	}
}
