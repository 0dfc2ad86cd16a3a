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
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
	regionv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/region/v1"
)

// Answerer answers the queries of other regions.
type Answerer interface {
	// State describes the region. Every answer carries it.
	State() regions.State

	// Answer carries out a query of a region. done is called once, perhaps on another goroutine.
	Answer(ctx context.Context, from string, q *regions.Query, done func(*regions.Answer))
}

// Bounds of the memory that peers can make a server use. All replicas of the other regions may connect. Each region has
// the same number of places, so that regions do not compete for them.
const (
	maxConnections = 512 // connections with a certificate of a region
	maxCalls       = 100 // concurrent calls on a connection
	maxMessage     = 1 << 20
	maxHeld        = 16 * maxMessage // memory of a connection
	maxHeaders     = 8 << 10         // headers of a call

	// maxWork bounds the calls of one region whose answers are not sent yet, in bytes. Decoded, they are about ten times
	// as large.
	maxWork = 2 * maxMessage

	longestWrite = 10 * time.Second

	// longest is how long a query may wait for the store: the other side closes a connection that is silent for a second.
	longest = 500 * time.Millisecond

	// A peer that neither reads nor answers pings is disconnected, and the data waiting for it is dropped.
	pingAfter, pingTimeout = 15 * time.Second, 5 * time.Second
)

// ServerOptions are the settings of a server. All but Log are required.
type ServerOptions struct {
	Listener net.Listener // the server closes it
	TLS      *tlsfiles.Files
	Region   string   // region of this replica
	Regions  []string // all regions, including this one
	Store    Answerer
	Log      *slog.Logger // default slog.Default()

	Shared *endpoint.Shared // common parts of all ports; nil means defaults

	handshake time.Duration // longest time until a connection has shown its certificate; default pingTimeout
}

// Server answers other regions.
type Server struct {
	o         ServerOptions
	listener  net.Listener
	door      *door
	logged    atomic.Int64                   // when a rejected connection was last logged, in seconds since 1970
	work      map[string]*semaphore.Weighted // bytes of calls whose answers are not sent yet, by region
	transport *transport.Server
}

// NewServer returns a server. Queries are answered after Run has started.
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
	s := &Server{
		o: o, work: make(map[string]*semaphore.Weighted),
		door: &door{Listener: o.Listener, share: maxConnections / max(len(o.Regions)-1, 1)},
	}
	budget := o.Shared.Budget
	s.listener = intake.Listen(s.door, intake.Options{
		// half of the connections may be without a certificate of a region
		Name: "regions", MaxConnections: 2 * maxConnections,
		PeerShare: 1, Encrypted: true,
		Message: longestWrite, Write: longestWrite,
		Bytes:  intake.NewBytes(maxHeld, budget.Class("regions", budget.Total()/16)),
		Places: o.Shared.Places, Size: endpoint.GRPCSize + endpoint.TLSSize, Metrics: o.Shared.Connections, Log: o.Log,
	})
	for _, name := range o.Regions {
		s.work[name] = semaphore.NewWeighted(maxWork)
	}
	creds := credentials.NewTLS(config)
	s.transport = transport.New(transport.Options{
		Streams: map[string]*transport.StreamMethod{regionv1.RegionService_Ask_FullMethodName: {Serve: s.ask}},
		Calls:   intake.NewCalls(maxConnections*maxCalls, o.Shared.Connections),
		Handshake: func(raw, conn net.Conn) (net.Conn, *tls.ConnectionState, error) {
			encrypted, state, err := transport.Handshake(creds, raw)
			if err != nil {
				return nil, nil, err
			}
			from, err := s.regionOf(state)
			if err == nil {
				err = conn.(*visitor).enter(from)
			}
			if err != nil {
				_ = encrypted.Close()
				s.rejects(conn.RemoteAddr(), err)
				return nil, nil, err
			}
			return encrypted, state, nil
		},
		Panicked:         o.Shared.Panicked,
		HandshakeTimeout: cmp.Or(o.handshake, pingTimeout),
		MaxMessageBytes:  maxMessage,
		MaxHeaderBytes:   maxHeaders,
		MaxStreams:       maxCalls,
		WriteTimeout:     longestWrite,
		PingAfter:        pingAfter,
		PingTimeout:      pingTimeout,
		MinPingInterval:  clientPing / 2,
		Log:              o.Log,
	})
	return s, nil
}

// Run answers queries until ctx ends. Calls in flight are then cut off. Their queries are not sent again: they may have
// been carried out.
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

// regionOf returns the region of a connection's certificate.
func (s *Server) regionOf(state *tls.ConnectionState) (string, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return "", errors.New("no certificate")
	}
	from, err := RegionOf(state.PeerCertificates[0])
	switch {
	case err != nil:
		return "", err
	case from == s.o.Region:
		return "",
			fmt.Errorf("region %s is this replica's own region: replicas of one region share a Redis and do not ask each "+
				"other; do two regions have the same name?", from)
	case !slices.Contains(s.o.Regions, from):
		return "", fmt.Errorf("region %s is not in the list of region %s: %s", from, s.o.Region,
			strings.Join(s.o.Regions, ", "))
	}
	return from, nil
}

// rejects logs why a connection with a certificate of the authority is closed, at most once a minute. The other side
// only sees that the connection is closed.
func (s *Server) rejects(from net.Addr, err error) {
	now := time.Now().Unix()
	if last := s.logged.Load(); now-last >= 60 && s.logged.CompareAndSwap(last, now) {
		s.o.Log.Warn("a connection of another region is rejected", "address", from, "error", err)
	}
}

// ask answers a call of regionv1.RegionService.
func (s *Server) ask(stream *transport.Stream) error {
	from, err := s.regionOf(stream.TLS())
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	message, err := stream.Recv()
	if err != nil {
		return err
	}
	weight := int64(len(message))
	if !s.work[from].TryAcquire(weight) {
		return status.Errorf(codes.ResourceExhausted,
			"too many queries of region %s have no answer yet, or it does not read the answers: ask again later", from)
	}
	defer s.work[from].Release(weight)
	ctx, cancel := context.WithTimeout(stream.Context(), longest)
	defer cancel()
	m := new(regionv1.AskRequest)
	if err := proto.Unmarshal(message, m); err != nil {
		return status.Errorf(codes.InvalidArgument, "the message cannot be read: %v", err)
	}
	queries := m.GetQueries()
	if len(queries) > regions.MaxQueries {
		return status.Errorf(codes.InvalidArgument, "%d queries, %d are the most", len(queries), regions.MaxQueries)
	}
	state := s.o.Store.State()
	next := &regionv1.AskResponse{Replica: state.Replica, State: state.Sum, Rules: state.Rules,
		Replicas: uint32(s.door.count())}
	all := &gathering{some: make(chan struct{}, 1)}
	for i, q := range queries {
		// An invalid query does not affect the others: they belong to other requests.
		if query, ok := decodeQuery(q); ok {
			s.o.Store.Answer(ctx, from, query, func(a *regions.Answer) { all.add(encodeAnswer(i, a)) })
		} else {
			all.add(&regionv1.Answer{Query: uint32(i), Rejected: string(regions.Invalid)})
		}
	}
	for missing := len(queries); missing > 0; {
		<-all.some // every query is answered, at the latest when ctx ends
		answers := all.take()
		next.Answers = answers
		if missing -= len(answers); missing == 0 {
			break
		}
		if err := send(stream, next); err != nil {
			for missing > 0 { // the pending queries belong to this call
				<-all.some
				missing -= len(all.take())
			}
			return err
		}
		next = new(regionv1.AskResponse)
	}
	return send(stream, next)
}

func send(stream *transport.Stream, m *regionv1.AskResponse) error {
	message, err := proto.Marshal(m)
	if err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	return stream.Send(message)
}

// gathering collects answers of a call that are not sent yet.
type gathering struct {
	some chan struct{} // has an element if there are answers

	mu      sync.Mutex
	answers []*regionv1.Answer
}

func (g *gathering) add(a *regionv1.Answer) {
	g.mu.Lock()
	g.answers = append(g.answers, a)
	g.mu.Unlock()
	select {
	case g.some <- struct{}{}:
	default:
	}
}

func (g *gathering) take() (all []*regionv1.Answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	all, g.answers = g.answers, nil
	return all
}
