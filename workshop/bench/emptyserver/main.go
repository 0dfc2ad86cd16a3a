// Command emptyserver is the floor for benchmarks: a gRPC server whose handler does nothing. It answers every
// ShouldRateLimit with OK, and logs its address like ratelimitd.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// cheap are the options of grpc-go that make small messages cheap. Fixed windows turn off the estimation of bandwidth,
// and its pings. Workers keep their stacks; a new goroutine would grow a stack for each call.
var cheap = []grpc.ServerOption{grpc.StaticConnWindowSize(1 << 20), grpc.StaticStreamWindowSize(1 << 20),
	grpc.NumStreamWorkers(128)}

func main() {
	tuned := flag.Bool("tuned", false,
		"with options for small messages and ratelimitd's garbage collection, not the defaults")
	lean := flag.Bool("lean", false, "on the built-in HTTP/2 server of ratelimitd, with its garbage collection")
	flag.Parse()
	serve := func() error { return run(*tuned) }
	if *lean {
		serve = runLean
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "emptyserver:", err)
		os.Exit(1)
	}
}

// run serves until the process is killed.
func run(tuned bool) error {
	var options []grpc.ServerOption
	if tuned {
		options = cheap
		debug.SetGCPercent(800)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	g := grpc.NewServer(options...)
	ratelimitv3.RegisterRateLimitServiceServer(g, empty{})
	slog.New(slog.NewJSONHandler(os.Stderr, nil)).Info("listening", "grpc", l.Addr().String())
	if err := g.Serve(l); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// runLean serves on the built-in HTTP/2 server until the process is killed.
func runLean() error {
	debug.SetGCPercent(800)
	m, err := intake.NewMetrics(nil)
	if err != nil {
		return fmt.Errorf("make metrics: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s := transport.New(transport.Options{
		Path:    ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName,
		Handler: leanEmpty{},
		Calls:   intake.NewCalls(4096, m),
	})
	slog.New(slog.NewJSONHandler(os.Stderr, nil)).Info("listening", "grpc", l.Addr().String())
	if err := s.Serve(l); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// leanEmpty answers without looking at the request.
type leanEmpty struct{}

// Handle implements transport.Handler.
func (leanEmpty) Handle(_ time.Time, calls []*transport.Call) {
	for _, c := range calls {
		c.Reply(ok{})
	}
}

// ok is an encoded answer with the code OK.
type ok struct{}

// AppendTo implements transport.Message.
func (ok) AppendTo(b []byte) []byte { return append(b, 1<<3, byte(ratelimitv3.RateLimitResponse_OK)) }

// empty answers without looking at the request.
type empty struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
}

func (empty) ShouldRateLimit(context.Context, *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK}, nil
}
