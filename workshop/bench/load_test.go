package main

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// answering is a rate limit server whose answers a test sets.
type answering struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	answer func(*ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error)
}

func (a answering) ShouldRateLimit(_ context.Context, r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return a.answer(r)
}

func serve(t *testing.T, answer func(*ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error)) (address string, g *grpc.Server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g = grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(g, answering{answer: answer})
	go func() { _ = g.Serve(l) }() // ends with Stop
	t.Cleanup(g.Stop)
	return l.Addr().String(), g
}

func dialed(t *testing.T, address string, p *payload) *load {
	t.Helper()
	l, err := dialLoad(t.Context(), peers{addresses: []string{address}}, 2, 4, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

func allow(*ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK}, nil
}

func TestLoadSendsWhatItSays(t *testing.T) {
	const keys, descriptors = 50, 3
	var calls atomic.Int64
	var wrong atomic.Pointer[ratelimitv3.RateLimitRequest]
	seen := make(chan string, 1<<16)
	address, _ := serve(t, func(r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
		calls.Add(1)
		good := r.GetDomain() == domain && len(r.GetDescriptors()) == descriptors
		for i, d := range r.GetDescriptors() {
			good = good && len(d.GetEntries()) == 1 && d.GetEntries()[0].GetKey() == descriptorKey(i)
		}
		if !good {
			wrong.Store(r)
			return allow(r)
		}
		select {
		case seen <- r.GetDescriptors()[descriptors-1].GetEntries()[0].GetValue():
		default:
		}
		return allow(r)
	})
	l := dialed(t, address, newPayload(keys, descriptors))
	var answered int64
	for range 2 { // a connection can be used again
		r, err := l.run(t.Context(), 100*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if r.answered == 0 || r.latency.TotalCount() != r.answered || r.took < 100*time.Millisecond {
			t.Errorf("%d answers with %d latencies in %v", r.answered, r.latency.TotalCount(), r.took)
		}
		answered += r.answered
	}
	if answered != calls.Load() {
		t.Errorf("%d answers to %d calls", answered, calls.Load())
	}
	if r := wrong.Load(); r != nil {
		t.Errorf("a request is not as it should be: %v", r)
	}
	close(seen)
	values := make(map[string]bool)
	for v := range seen {
		values[v] = true
	}
	if len(values) > keys || len(values) < 2 {
		t.Errorf("%d values, want some of %d", len(values), keys)
	}
	for v := range values {
		if number, ok := strings.CutPrefix(v, "customer-"); !ok || len(number) != len(digits) || number >= "00000050" {
			t.Errorf("the value %q is not of the range", v)
		}
	}
}

func TestLoadReportsWhatIsNoAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(*ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error)
		want   string
	}{
		{"an error", func(*ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
			return nil, status.Error(codes.Unavailable, "no backend")
		}, `status "14": no backend`},
		{"a denial", func(*ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
			return &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OVER_LIMIT}, nil
		}, "not OK"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, _ := serve(t, c.answer)
			_, err := dialed(t, address, newPayload(1, 1)).run(t.Context(), 10*time.Second)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestLoadEndsWithItsServer(t *testing.T) {
	called := make(chan struct{}, 1)
	address, g := serve(t, func(r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
		select {
		case called <- struct{}{}:
		default:
		}
		return allow(r)
	})
	l := dialed(t, address, newPayload(1, 1))
	go func() {
		<-called
		g.Stop()
	}()
	if _, err := l.run(t.Context(), 20*time.Second); err == nil {
		t.Error("a run whose server has gone ended without an error")
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	address, _ := serve(t, func(r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
		cancel()
		return allow(r)
	})
	if _, err := dialed(t, address, newPayload(1, 1)).run(ctx, 20*time.Second); err == nil {
		t.Error("a run whose context has ended has no error")
	}
}
