package regionrpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
	regionv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/region/v1"
)

// Answerer is what a server answers with.
type Answerer interface {
	// Answer answers the questions of a region: as many answers as questions, in the same order.
	Answer(ctx context.Context, from string, epoch uint64, queries []regions.Query) ([]regions.Reply, error)

	// Consent reports whether this region consents that another one, e.Home, is a home.
	Consent(ctx context.Context, from string, e *region.Epoch) (bool, error)
}

// Bounds of what peers may make a server keep. All replicas of all regions may connect; each of them has few calls at once. Anybody else may
// connect too, but has only maxStrangers places.
const (
	maxConnections = 512 // with a certificate
	maxStrangers   = 64  // that have not shown one yet
	maxCalls       = 16  // at once on a connection
	maxCallsOfOne  = 256 // at once of one region, so that the others are answered too
	maxMessage     = 1 << 20
	maxHeld        = maxCalls * maxMessage // of a connection
	longest        = 10 * time.Second      // for an answer, whatever deadline the caller has

	// A peer that neither reads nor answers pings is disconnected, with what waits for it.
	pingAfter, pingTimeout = 15 * time.Second, 5 * time.Second
)

// ServerOptions are the settings of a server. All but Log are required.
type ServerOptions struct {
	Listener net.Listener // the server closes it
	TLS      *tlsfiles.Files
	Region   string   // of this replica
	Regions  []string // all, with this one
	Store    Answerer
	Log      *slog.Logger // default slog.Default()

	Shared *endpoint.Shared // what all ports of the process share; nil: defaults

	handshake time.Duration // the most for a connection to show its certificate; default pingTimeout
}

// Server answers other regions.
type Server struct {
	regionv1.UnimplementedRegionServiceServer

	o         ServerOptions
	listener  net.Listener
	transport *transport.Server
	calls     map[string]*atomic.Int64 // at once, by region
}

// NewServer makes a server. Nothing is answered before Run.
func NewServer(o ServerOptions) (*Server, error) {
	config, err := o.TLS.Server()
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Shared == nil {
		if o.Shared, err = endpoint.New(endpoint.Options{Log: o.Log}); err != nil {
			return nil, err
		}
	}
	s := &Server{o: o, calls: make(map[string]*atomic.Int64)}
	for _, name := range o.Regions {
		s.calls[name] = new(atomic.Int64)
	}
	budget := o.Shared.Budget
	s.listener = intake.Listen(&door{Listener: o.Listener}, intake.Options{
		Name: "regions", MaxConnections: maxConnections + maxStrangers, PeerShare: 1, Message: longest, Write: longest,
		Bytes: intake.NewBytes(maxHeld, budget.Class("regions", budget.Total()/16)), Metrics: o.Shared.Connections, Log: o.Log,
	})
	services := &transport.Services{Unary: s.admit}
	regionv1.RegisterRegionServiceServer(services, s)
	creds := credentials.NewTLS(config)
	s.transport = transport.New(transport.Options{
		Streams: services.Streams(),
		Calls:   intake.NewCalls(maxConnections*maxCalls, o.Shared.Connections),
		Handshake: func(raw, conn net.Conn) (net.Conn, *tls.ConnectionState, error) {
			encrypted, state, err := transport.Handshake(creds, raw)
			if err != nil {
				return nil, nil, err
			}
			if err := conn.(*visitor).enter(); err != nil {
				_ = encrypted.Close()
				return nil, nil, err
			}
			return encrypted, state, nil
		},
		HandshakeTimeout: cmp.Or(o.handshake, pingTimeout),
		MaxMessageBytes:  maxMessage,
		MaxStreams:       maxCalls,
		WriteTimeout:     longest,
		PingAfter:        pingAfter,
		PingTimeout:      pingTimeout,
		MinPingInterval:  clientPing / 2,
		Log:              o.Log,
	})
	return s, nil
}

// Run answers until ctx ends. Calls in flight are then cut off: their callers ask another replica, with the same question.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.transport.Close)
	defer stop()
	err := s.transport.Serve(s.listener)
	s.transport.Close()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve other regions: %w", err)
}

type fromKey struct{}

// admit finds out which region calls, and whether there is room for its call.
func (s *Server) admit(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	from, err := s.caller(ctx)
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	calls := s.calls[from]
	defer calls.Add(-1)
	if calls.Add(1) > maxCallsOfOne {
		return nil, status.Errorf(codes.ResourceExhausted, "region %s has %d calls in flight here: ask again later", from, maxCallsOfOne)
	}
	defer func() {
		if p := recover(); p != nil {
			if started, ok := p.(*async.PanicError); ok {
				p = started.Value
			}
			s.o.Log.Error("panic while answering another region", "method", info.FullMethod, "region", from, "panic", p)
			err = status.Error(codes.Internal, "internal error: the server's log has the details")
		}
	}()
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, fromKey{}, from), longest)
	defer cancel()
	return next(ctx, req)
}

// caller returns the region of the client's certificate.
func (s *Server) caller(ctx context.Context) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", errors.New("no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return "", errors.New("no certificate")
	}
	from, err := RegionOf(info.State.PeerCertificates[0])
	switch {
	case err != nil:
		return "", err
	case from == s.o.Region:
		return "", fmt.Errorf("region %s is this replica's own region: replicas of one region share a Redis and do not ask each other; do two regions have the same name?", from)
	case !slices.Contains(s.o.Regions, from):
		return "", fmt.Errorf("region %s is not in the list of region %s: %s", from, s.o.Region, strings.Join(s.o.Regions, ", "))
	}
	return from, nil
}

// Exchange implements regionv1.RegionServiceServer.
func (s *Server) Exchange(ctx context.Context, m *regionv1.ExchangeRequest) (*regionv1.ExchangeResponse, error) {
	from := ctx.Value(fromKey{}).(string)
	if n := len(m.GetQueries()); n == 0 || n > regions.MaxQueries {
		return nil, status.Errorf(codes.InvalidArgument, "%d questions, where there are from 1 to %d", n, regions.MaxQueries)
	}
	if err := checkEpoch(m.GetEpoch()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	// A question that cannot be understood does not affect the others: they stand for other callers.
	answer := &regionv1.ExchangeResponse{Replies: make([]*regionv1.Reply, len(m.GetQueries()))}
	queries, places := make([]regions.Query, 0, len(m.GetQueries())), make([]int, 0, len(m.GetQueries()))
	for i, q := range m.GetQueries() {
		if a, ok := decodeQuery(q, from, m.GetEpoch()); ok {
			queries, places = append(queries, a), append(places, i)
		} else {
			answer.Replies[i] = encodeReply(&regions.Reply{Refused: regions.Invalid})
		}
	}
	if len(queries) == 0 {
		return answer, nil
	}
	replies, err := s.o.Store.Answer(ctx, from, m.GetEpoch(), queries)
	if err != nil {
		return nil, failed(ctx, err)
	}
	if len(replies) != len(queries) {
		return nil, status.Errorf(codes.Internal, "%d answers to %d questions", len(replies), len(queries))
	}
	for i := range replies {
		answer.Replies[places[i]] = encodeReply(&replies[i])
	}
	return answer, nil
}

// Consent implements regionv1.RegionServiceServer.
func (s *Server) Consent(ctx context.Context, m *regionv1.ConsentRequest) (*regionv1.ConsentResponse, error) {
	from := ctx.Value(fromKey{}).(string)
	e, err := decodeEpoch(m, from)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the list of regions has %v", err)
	}
	consents, err := s.o.Store.Consent(ctx, from, e)
	if err != nil {
		return nil, failed(ctx, err)
	}
	return &regionv1.ConsentResponse{Consents: consents}, nil
}

// failed is the error of a store for the other region.
func failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Unavailable, err.Error())
}
