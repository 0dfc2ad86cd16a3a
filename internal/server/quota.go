package server

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/quota/assigner"
)

const (
	// cutAfter is how long a stream that ends may take to write the message that it is writing.
	cutAfter = time.Second

	// largeReport is the size from which on reports are read one after another, in bytes: what is read takes several times as much
	// memory.
	largeReport = 64 << 10
)

var (
	errServerStops   = status.Error(codes.Unavailable, "the server is stopping")
	errNotReading    = status.Error(codes.ResourceExhausted, "the client does not read its assignments")
	errNoQuotaDomain = status.Error(codes.InvalidArgument, "domain: the first message must have one")
	errOtherDomain   = status.Error(codes.InvalidArgument, "domain: it must be the same in all messages of a stream")
	errClientIsDone  = errors.New("the client has closed its side of the stream")
)

// quotaService is envoy.service.rate_limit_quota.v3.RateLimitQuotaService.
type quotaService struct {
	streams      QuotaStreams
	bound        *intake.Streams
	most         int           // bytes of a message
	grpc         *grpc.Server  // with the bound of its messages; nil without the built-in HTTP/2 server
	calls        *intake.Calls // nil on the built-in HTTP/2 server, which counts them itself
	shared       *endpoint.Shared
	metrics      *quotaMetrics
	requests     Requests
	writeTimeout time.Duration
	large        chan struct{} // has room for the large reports that are read at a time
	scratch      chan *quotaReport
	stopping     context.Context // done when the server stops
}

// registerQuota registers the service, with a handler that works on plain structs.
func registerQuota(to grpc.ServiceRegistrar, q *quotaService) {
	desc := quotav3.RateLimitQuotaService_ServiceDesc
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: desc.ServiceName, HandlerType: (*any)(nil), Metadata: desc.Metadata,
		Streams: []grpc.StreamDesc{{
			StreamName: desc.Streams[0].StreamName, Handler: q.handle, ServerStreams: true, ClientStreams: true,
		}},
	}, q)
}

// newQuota makes the service.
func (s *Server) newQuota(opts *Options, streams *intake.Streams, m *quotaMetrics) *quotaService {
	q := &quotaService{
		streams: opts.Quota, bound: streams, shared: s.shared, metrics: m, requests: opts.Requests,
		most:         int(min(maxReportBytes, opts.Connections.MaxBytes)), // no longer message can arrive
		writeTimeout: opts.Connections.WriteTimeout,
		large:        make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		scratch:      make(chan *quotaReport, runtime.GOMAXPROCS(0)),
		stopping:     s.stopping,
	}
	for range cap(q.scratch) {
		q.scratch <- new(quotaReport)
	}
	return q
}

// handle serves a stream until the client or the server ends it. It counts as a call in flight only until it is admitted as a stream.
func (q *quotaService) handle(_ any, stream grpc.ServerStream) error {
	ctx := stream.Context()
	conn, x := connOf(ctx), exchangeOf(ctx)
	if x != nil { // package transport has admitted it
		conn = x.conn
	} else {
		call, ok := q.calls.Begin(conn)
		if !ok {
			return errTooManyCalls
		}
		defer func() { q.calls.End(call, 0) }()
		end, refusal := q.admit(conn)
		if refusal != "" {
			return status.Error(codes.ResourceExhausted, refusal)
		}
		defer end()
		q.calls.Detach(&call)
	}

	s := &quotaStream{quotaService: q, wire: stream, conn: conn, exchange: x}
	var end context.CancelCauseFunc
	s.ctx, end = context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(q.stopping, func() { end(errServerStops) })()
	s.assignments = q.streams.Open(clientOf(ctx))
	defer s.close()
	go s.recovering(end, s.readReports)
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		s.recovering(end, s.sendActions)
	}()
	<-s.ctx.Done()
	s.awaitSending(sending)
	err := context.Cause(s.ctx)
	switch {
	case errors.Is(err, errClientIsDone):
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return grpcstatus.Of(err)
	}
	return err
}

// streamSize is how many bytes a stream takes besides what its connection counts for each request and what is kept of its buckets: stacks,
// and buffers of grpc-go.
const streamSize = 20 << 10

// admit admits a stream, or returns why it does not. end ends the stream.
func (q *quotaService) admit(conn *intake.Conn) (end func(), refusal string) {
	if conn != nil && !conn.HasRoom(streamSize) {
		q.metrics.refused[overBytes].Inc()
		return nil, "too much is kept for clients"
	}
	if why := q.bound.Begin(conn); why != "" {
		q.metrics.refused[why].Inc()
		return nil, "too many quota streams"
	}
	if conn == nil {
		return func() { q.bound.End(nil) }, ""
	}
	conn.Hold(streamSize)
	return func() {
		conn.Hold(-streamSize)
		q.bound.End(conn)
	}, ""
}

func clientOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// quotaStream is one stream of the service.
type quotaStream struct {
	*quotaService

	ctx      context.Context // ends with the stream; its cause is the stream's error
	wire     grpc.ServerStream
	conn     *intake.Conn // may be nil
	exchange *exchange    // on the built-in HTTP/2 server; else nil

	mu          sync.Mutex // held during a report, so that none comes after Close
	closed      bool
	assignments QuotaStream
	domain      string
}

// recovering runs a part of a stream, and ends the stream with its error. A panic is an error.
func (s *quotaStream) recovering(end context.CancelCauseFunc, part func() error) {
	defer func() {
		if p := recover(); p != nil {
			end(s.shared.Panicked(p, quotav3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName))
		}
	}()
	end(part())
}

// close ends the subscriptions of the stream.
func (s *quotaStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.assignments.Close(time.Now())
}

// readReports passes on what the client reports, until the stream ends.
func (s *quotaStream) readReports() error {
	for {
		var in quotaMessage
		if err := s.wire.RecvMsg(&in); err != nil {
			if errors.Is(err, io.EOF) {
				return errClientIsDone
			}
			return err
		}
		size := in.data.Len()
		if err := s.report(&in, size); err != nil {
			return err
		}
		if s.exchange != nil {
			s.exchange.next()
		} else if s.conn != nil {
			s.conn.Used(size)
		}
	}
}

// report passes on one message of the client.
func (s *quotaStream) report(in *quotaMessage, size int) error {
	defer in.free()
	if size > largeReport {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	// More reports at once than there are processors would not be faster, and each takes several times its size.
	r := <-s.scratch
	defer func() {
		r.reset()
		s.scratch <- r
	}()
	if err := in.decode(r, s.requests); err != nil {
		if _, ok := status.FromError(err); ok {
			return err
		}
		return grpcstatus.Of(err)
	}
	switch {
	case r.domain == "" && s.domain == "":
		return errNoQuotaDomain
	case s.domain == "":
		s.domain = strings.Clone(r.domain)
	case r.domain != "" && r.domain != s.domain:
		return errOtherDomain
	}
	s.metrics.reports.Inc()
	s.metrics.usages.Add(float64(len(r.usages)))
	s.metrics.skipped.Add(float64(r.skipped))
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.assignments.Report(time.Now(), s.domain, r.usages)
	}
	return nil
}

// sendActions sends what the client must be told, until the stream ends.
func (s *quotaStream) sendActions() error {
	var all []assigner.Action
	for {
		var err error
		if all, err = s.assignments.Next(s.ctx, all[:0]); err != nil {
			return err
		}
		for rest := all; len(rest) > 0; {
			var message []byte
			var n int
			if message, n, rest = encodeActions(rest); n == 0 {
				break
			}
			if err := s.send(message); err != nil {
				return err
			}
			s.metrics.actions.Add(float64(n))
		}
		s.assignments.Sent(time.Now())
		clear(all)
		if cap(all) > maxAnswerActions {
			all = nil
		}
	}
}

// send sends one message. A client that does not read loses its connection: nothing else ends a write that waits.
func (s *quotaStream) send(message []byte) error {
	late := time.AfterFunc(s.writeTimeout, s.cut)
	err := s.wire.SendMsg(quotaAnswer(message))
	if err == nil && s.exchange != nil {
		err = s.exchange.flushed(s.wire.Context())
	}
	if !late.Stop() {
		return errNotReading
	}
	return err
}

// awaitSending waits until the message that is being written is written, but not for long.
func (s *quotaStream) awaitSending(done <-chan struct{}) {
	late := time.AfterFunc(cutAfter, s.cut)
	defer late.Stop()
	<-done
}

// cut closes the connection.
func (s *quotaStream) cut() {
	if s.conn != nil {
		s.conn.Cut(intake.NotReading)
	}
}

// quotaMessage is a message of a client, as the codec leaves it.
type quotaMessage struct{ data mem.BufferSlice }

func (m *quotaMessage) decode(r *quotaReport, bounds Requests) error {
	buf := m.data.MaterializeToBuffer(mem.DefaultBufferPool())
	m.free()
	defer buf.Free()
	message := buf.ReadOnlyData()
	return decodeReport(message, string(message), r, bounds)
}

// free gives the memory of the message back. It may be called again.
func (m *quotaMessage) free() {
	m.data.Free()
	m.data = nil
}

// quotaAnswer is an encoded message for a client.
type quotaAnswer []byte
