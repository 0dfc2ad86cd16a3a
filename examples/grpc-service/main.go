// Command grpc-service is a gRPC service whose calls are limited by ratelimitd, and its client. The client waits when
// it is denied:
//
//	ratelimitd --rules examples/grpc-service/rules
//	grpc-service
//	grpc-service -call 20
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/grpclimit"
)

func main() {
	listen := flag.String("listen", "localhost:9001", "where this service listens")
	target := flag.String("ratelimitd", "localhost:8081",
		"where ratelimitd is; dns:///name:8081 balances over all its addresses")
	calls := flag.Int("call", 0, "make this many calls of a service that runs, and end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := func() error { return serve(ctx, *listen, *target) }
	if *calls > 0 {
		run = func() error { return call(ctx, *listen, *calls) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve runs the service until the context ends.
func serve(ctx context.Context, listen, target string) error {
	limiter, err := client.New(target, client.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = limiter.Close() }()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return err
	}
	server := newServer(limiter)
	defer context.AfterFunc(ctx, server.GracefulStop)()
	return server.Serve(listener)
}

// proxies are the networks of the proxies in front of this service.
var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}

// newServer returns a server with limits. Register your own service instead of the health service.
func newServer(limiter limits.Decider) *grpc.Server {
	o := grpclimit.Options{
		Domain: "jobs",
		Descriptors: []grpclimit.Descriptor{
			{grpclimit.Metadata("x-api-key", "customer").Hashed().Or("none"), grpclimit.Method("method")},
			{grpclimit.PeerAddress("address", proxies...)},
		},
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter, o)),
		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(limiter, o)),
	)
	healthpb.RegisterHealthServer(server, health.NewServer())
	return server
}

// call makes calls. Denied calls are repeated at the time that the service returns.
func call(ctx context.Context, target string, calls int) error {
	o := grpclimit.ClientOptions{Attempts: 20}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpclimit.UnaryClientInterceptor(o)),
		grpc.WithChainStreamInterceptor(grpclimit.StreamClientInterceptor(o)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	service := healthpb.NewHealthClient(conn)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "x-api-key", "ann"), time.Minute)
	defer cancel()
	for range calls {
		if _, err := service.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			return err
		}
	}
	return nil
}
