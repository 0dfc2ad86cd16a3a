package server

import (
	"slices"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
)

const (
	handshakeTimeout = 10 * time.Second // until a connection must speak the protocol

	pingAfter   = 30 * time.Second // without a frame from a client
	pingTimeout = 10 * time.Second // for its answer; then the connection is closed

	// Envoy pings as often as its connection_keepalive says, also without calls, and people write 1 s and less there. A
	// client that pings more often than this is disconnected (GOAWAY ENHANCE_YOUR_CALM). grpc-go's default is 5 min.
	leastPingInterval = 10 * time.Millisecond
)

// Tuned are the options that make grpc-go cheap for small messages; docs/contributing/measuring.md says what each saves. They are
// exported for a benchmark that compares a server without logic.
//
// Fixed windows turn the estimation of bandwidth off, with its pings. Workers keep their stacks, where a new goroutine
// would grow one for every call; a call that finds no free worker gets a goroutine. That connections share a write buffer,
// which saves as much, is grpc-go's default.
func Tuned(workers uint32) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StaticConnWindowSize(1 << 20),
		grpc.StaticStreamWindowSize(1 << 20),
		grpc.NumStreamWorkers(workers),
	}
}

// newGRPC returns the server, and the methods that package transport answers: the first one is called most.
func (s *Server) newGRPC(opts *Options) (*grpc.Server, []*method) {
	all := append(Tuned(opts.Calls.Workers),
		grpc.ForceServerCodecV2(newCodec(opts.Requests.MaxBytes)),
		grpc.MaxRecvMsgSize(opts.Requests.MaxBytes),
		grpc.MaxConcurrentStreams(opts.Connections.MaxStreams),
		grpc.Creds(framedCredentials{opts.Listen.credentials()}),
		grpc.MaxHeaderListSize(endpoint.MaxHeaderSize),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPingInterval, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      opts.Connections.MaxAge,
			MaxConnectionAgeGrace: opts.Connections.MaxAgeGrace,
			Time:                  pingAfter,
			Timeout:               pingTimeout,
		}),
		grpc.ChainUnaryInterceptor(s.shared.Unary),
		grpc.ChainStreamInterceptor(s.shared.Stream),
	)
	calls := s.calls
	if opts.Lean {
		calls = nil // package transport counts them
	}
	if s.quota != nil {
		withReports := append(slices.Clip(all), grpc.MaxRecvMsgSize(s.quota.most), grpc.NumStreamWorkers(0))
		if opts.Lean {
			s.quota.grpc = grpc.NewServer(append(withReports, opts.ServerOptions...)...)
			registerQuota(s.quota.grpc, s.quota)
		} else {
			s.quota.calls = calls
			all = append(all, grpc.MaxRecvMsgSize(max(s.quota.most, opts.Requests.MaxBytes))) // the codec has the bound of other messages
		}
	}
	g := grpc.NewServer(append(all, opts.ServerOptions...)...)
	if s.quota != nil {
		registerQuota(g, s.quota) // on the built-in HTTP/2 server only for reflection
	}
	d := &deciding{decider: opts.Decider, answers: &s.metrics.grpc, shared: s.shared, calls: calls, bounds: opts.Requests}
	methods := []*method{registerRateLimit(g, d)}
	describeOwn()
	methods = append(methods, registerReservations(g, d, opts.Reservations)...)
	methods = append(methods, registerDecisions(g, d))
	methods = append(methods, registerKuadrant(g, d, opts.Reservations)...)
	others := countedServices{g, calls, s.long, nil}
	healthv1.RegisterHealthServer(others, healthService{s.readiness.grpc, s.stopping})
	if opts.Reflection {
		others.fewer = s.long.reflections
		reflection.Register(others)
	}
	return g, methods
}
