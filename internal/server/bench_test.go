package server

import (
	"context"
	"net"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// emptyService answers with as little as possible.
type emptyService struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
}

func (emptyService) ShouldRateLimit(context.Context, *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	return &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK}, nil
}

// BenchmarkCall measures whole calls over a socket, with both ends in this process. The difference between the two
// results is this package's gain over an empty server of grpc-go.
func BenchmarkCall(b *testing.B) {
	b.Run("empty handler", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		s := grpc.NewServer()
		ratelimitv3.RegisterRateLimitServiceServer(s, emptyService{})
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		benchmarkCalls(b, l.Addr())
		s.Stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	b.Run("server", func(b *testing.B) {
		r := start(b, Options{})
		benchmarkCalls(b, r.GRPCAddr)
	})
}

func benchmarkCalls(b *testing.B, addr net.Addr) {
	conn := dial(b, addr)
	data := encode(b, smallRequest())
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		var out []byte
		for pb.Next() {
			if err := conn.Invoke(context.Background(), ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, &data, &out, grpc.ForceCodec(rawBytes{}), grpc.StaticMethod()); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	_ = conn.Close()
}

// BenchmarkBatch is a batch of 100 requests over a socket, to compare with 100 calls of BenchmarkCall.
func BenchmarkBatch(b *testing.B) {
	r := start(b, Options{Decider: manyLimits(b, memory.New(memory.Options{}), limiter.Settings{})})
	data := encode(b, &ratelimitdv1.DecideBatchRequest{Requests: hundred(maxBatch)})
	b.ReportAllocs()
	var out []byte
	for b.Loop() {
		if err := r.conn.Invoke(context.Background(), ratelimitdv1.DecisionService_DecideBatch_FullMethodName, &data, &out, grpc.ForceCodec(rawBytes{}), grpc.StaticMethod()); err != nil {
			b.Fatal(err)
		}
	}
}
