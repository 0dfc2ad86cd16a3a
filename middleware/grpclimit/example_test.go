package grpclimit_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/grpclimit"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

// limiter opens a limiter with the rules of the examples.
func limiter() (l *ratelimit.Limiter, end func()) {
	dir, err := os.MkdirTemp("", "rules")
	if err != nil {
		log.Fatal(err)
	}
	err = os.WriteFile(filepath.Join(dir, "api.yaml"), []byte(`
domain: api
descriptors:
  - key: customer
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 20, algorithm: token_bucket, burst: 1}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 1000}
    reservations: {ttl: 1m}
`), 0o600)
	if err != nil {
		log.Fatal(err)
	}
	l, err = ratelimit.Open(context.Background(), ratelimit.Options{Dir: rulefiles.Dir(dir), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	return l, func() { _, _ = l.Close(), os.RemoveAll(dir) }
}

// start starts a service with interceptors, and returns a client of it. The service answers health checks.
func start(server *grpc.Server, dial ...grpc.DialOption) (c healthpb.HealthClient, end func()) {
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		log.Fatal(err)
	}
	return healthpb.NewHealthClient(conn), func() { _ = conn.Close(); server.Stop() }
}

var ann = metadata.AppendToOutgoingContext(context.Background(), "x-api-key", "ann")

func ExampleUnaryServerInterceptor() {
	l, end := limiter()
	defer end()
	limit := grpclimit.UnaryServerInterceptor(l, grpclimit.Options{
		Domain:      "api",
		Descriptors: []grpclimit.Descriptor{{grpclimit.Metadata("x-api-key", "customer").Or("nobody")}},
	})
	client, stop := start(grpc.NewServer(grpc.ChainUnaryInterceptor(limit)))
	defer stop()
	for range 3 {
		_, err := client.Check(ann, &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
}

// A stream costs one hit for each message that it sends.
func ExampleStreamServerInterceptor() {
	l, end := limiter()
	defer end()
	limit := grpclimit.StreamServerInterceptor(l, grpclimit.Options{
		Domain:      "api",
		Descriptors: []grpclimit.Descriptor{{grpclimit.Metadata("x-api-key", "tokens").Or("nobody")}},
		// the most that a stream may send
		Cost:   func(context.Context, *grpclimit.Call) limits.Amount { return limits.Amount{Hits: 500} },
		Actual: func(_ context.Context, c *grpclimit.Call) limits.Amount { return limits.Amount{Hits: uint64(c.Sent)} },
	})
	client, stop := start(grpc.NewServer(grpc.ChainStreamInterceptor(limit), grpc.WaitForHandlers(true)))
	ctx, cancel := context.WithCancel(ann)
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	fmt.Println(err)
	cancel()
	stop() // waits for the handlers
	r := limits.NewRequest("api", "tokens", "ann")
	r.Amount.Peek = true
	d, err := l.Decide(context.Background(), r)
	fmt.Println(d.Statuses[0].Remaining, err)
	// Output:
	// <nil>
	// 999 <nil>
}

// A client waits when it is denied.
func ExampleUnaryClientInterceptor() {
	l, end := limiter()
	defer end()
	limit := grpclimit.UnaryServerInterceptor(l, grpclimit.Options{
		Domain:      "api",
		Descriptors: []grpclimit.Descriptor{{grpclimit.Metadata("x-api-key", "fast").Or("nobody")}},
	})
	client, stop := start(grpc.NewServer(grpc.ChainUnaryInterceptor(limit)),
		grpc.WithChainUnaryInterceptor(grpclimit.UnaryClientInterceptor(grpclimit.ClientOptions{})))
	defer stop()
	ctx, cancel := context.WithTimeout(ann, time.Minute)
	defer cancel()
	for range 3 {
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// OK
}

// A client makes at most 20 calls of a method a second, even if the server allows more.
func ExampleStreamClientInterceptor() {
	l, end := limiter()
	defer end()
	limit := grpclimit.StreamClientInterceptor(grpclimit.ClientOptions{
		Decider:     l,
		Domain:      "api",
		Descriptors: []grpclimit.Descriptor{{grpclimit.Method("fast")}},
	})
	client, stop := start(grpc.NewServer(), grpc.WithChainStreamInterceptor(limit))
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 3 {
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// <nil>
	// <nil>
}
