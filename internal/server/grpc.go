package server

import (
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

const (
	pingAfter   = 30 * time.Second // without a sign of life of a client
	pingTimeout = 10 * time.Second // for its answer; then the connection is closed

	// Envoy pings as often as its connection_keepalive says, also without calls, and people write 1 s and less there. One
	// that pings more often than this is sent away (GOAWAY ENHANCE_YOUR_CALM), which grpc-go's default does below 5 min.
	leastPingInterval = 10 * time.Millisecond
)

// Tuned are the options that make grpc-go cheap for small messages; docs/performance.md has what they are worth. They
// are exported so that a benchmark can compare like with like.
//
// Fixed windows end the estimation of bandwidth, with its pings; workers keep their stacks, where a new goroutine would
// grow one for every call. A call that finds no worker free gets a goroutine. That connections share a write buffer,
// which is worth as much, is grpc-go's default.
func Tuned(workers uint32) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StaticConnWindowSize(1 << 20),
		grpc.StaticStreamWindowSize(1 << 20),
		grpc.NumStreamWorkers(workers),
	}
}

func (s *Server) newGRPC(opts *Options) *grpc.Server {
	all := append(Tuned(opts.StreamWorkers),
		grpc.ForceServerCodecV2(newCodec(opts.bounds())),
		grpc.MaxRecvMsgSize(opts.MaxRecvMsgSize),
		grpc.MaxConcurrentStreams(opts.MaxStreams),
		grpc.Creds(framed{opts.credentials()}),
		grpc.MaxHeaderListSize(maxHeaderSize),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPingInterval, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      opts.MaxConnectionAge,
			MaxConnectionAgeGrace: opts.MaxConnectionAgeGrace,
			Time:                  pingAfter,
			Timeout:               pingTimeout,
		}),
		grpc.ChainUnaryInterceptor(s.rescue.unary),
		grpc.ChainStreamInterceptor(s.rescue.stream),
	)
	g := grpc.NewServer(append(all, opts.ServerOptions...)...)
	registerRateLimit(g, &rateLimit{decider: opts.Decider, answers: &s.metrics.grpc, rescue: s.rescue, calls: s.calls})
	others := inFlight{g, s.calls}
	healthv1.RegisterHealthServer(others, healthService{s.readiness.grpc, s.stopping})
	reflection.Register(others)
	return g
}

// newAdmin is the server of what only operators may ask. It has no listener: the debug listener hands it its calls.
func (s *Server) newAdmin(opts *Options) *grpc.Server {
	g := grpc.NewServer(grpc.ChainUnaryInterceptor(s.rescue.unary), grpc.ChainStreamInterceptor(s.rescue.stream))
	adminv1.RegisterAdminServiceServer(g, &admin{ruleFiles: opts.RuleFiles, explain: opts.Explain, hotKeys: opts.HotKeys})
	adminv1.RegisterCounterServiceServer(g, newCounters(opts))
	reflection.Register(g)
	return g
}
