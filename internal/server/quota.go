package server

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"time"

	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

const (
	// cutAfter is how long a stream that ends may take to send its pending message.
	cutAfter = time.Second

	// Reports of at least largeReport bytes are decoded one after another: decoded, they are several times as large.
	largeReport = 64 << 10
)

var (
	errServerStops   = status.Error(codes.Unavailable, "the server is stopping")
	errNoQuotaDomain = status.Error(codes.InvalidArgument, "domain: the first message must have one")
	errOtherDomain   = status.Error(codes.InvalidArgument, "domain: it must be the same in all messages of a stream")
)

// quotaService is envoy.service.rate_limit_quota.v3.RateLimitQuotaService.
type quotaService struct {
	streams  QuotaStreams
	bound    *intake.Streams
	most     int // largest message, in bytes
	shared   *endpoint.Shared
	rejected *prometheus.CounterVec
	requests Requests
	large    chan struct{} // semaphore for large reports
	scratch  chan *quotaReport
	stopping context.Context // done when the server stops
}

// newQuota makes the service.
func (s *Server) newQuota(opts *Options, streams *intake.Streams, rejected *prometheus.CounterVec) *quotaService {
	q := &quotaService{
		streams: opts.Quota, bound: streams, shared: s.shared, rejected: rejected, requests: opts.Requests,
		most:     int(min(maxReportBytes, opts.Connections.MaxBytes)), // no longer message can arrive
		large:    make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
		scratch:  make(chan *quotaReport, runtime.GOMAXPROCS(0)),
		stopping: s.stopping,
	}
	for range cap(q.scratch) {
		q.scratch <- new(quotaReport)
	}
	return q
}

// serve serves a stream until the client or the server ends it.
func (q *quotaService) serve(wire *transport.Stream) error {
	defer context.AfterFunc(q.stopping, func() { wire.Interrupt(errServerStops) })()
	ctx, cancel := context.WithCancel(wire.Context())
	defer cancel()
	s := &quotaStream{quotaService: q, wire: wire, assignments: q.streams.Open(wire.RemoteAddr().String())}
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		if err := s.recovering(func() error { return s.sendActions(ctx) }); err != nil {
			wire.Interrupt(err)
		}
	}()
	err := s.recovering(s.readReports)
	cancel()
	late := time.AfterFunc(cutAfter, func() { wire.Interrupt(context.Canceled) })
	<-sending // the client may not have read the last message
	late.Stop()
	s.assignments.Close(time.Now())
	return err
}

// streamSize is the memory of a stream for the stack of the goroutine that sends, and for its actions. Its connection
// accounts for the rest of the stream, and the assigner for its buckets.
const streamSize = 8 << 10

// admit registers a stream, or returns the reason why it rejects it. end ends the stream.
func (q *quotaService) admit(conn *intake.Conn) (end func(), rejection string) {
	if conn != nil && !conn.HasRoom(streamSize) {
		q.rejected.WithLabelValues(quotaKind, string(overBytes)).Inc()
		return nil, "too much is kept for clients"
	}
	if why := q.bound.Begin(conn); why != "" {
		q.rejected.WithLabelValues(quotaKind, string(why)).Inc()
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

// quotaStream is one stream of the service.
type quotaStream struct {
	*quotaService

	wire        *transport.Stream
	assignments QuotaStream
	domain      string
}

// recovering runs a part of a stream. A panic becomes an error.
func (s *quotaStream) recovering(part func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.shared.Panicked(p, quotav3.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName)
		}
	}()
	return part()
}

// readReports passes the client's reports on, until the stream ends.
func (s *quotaStream) readReports() error {
	for {
		message, err := s.wire.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.report(message); err != nil {
			return err
		}
	}
}

// report passes one report of the client on.
func (s *quotaStream) report(message []byte) error {
	if len(message) > largeReport {
		s.large <- struct{}{}
		defer func() { <-s.large }()
	}
	// More concurrent reports than processors would not be faster, and each uses several times its size.
	r := <-s.scratch
	defer func() {
		r.reset()
		s.scratch <- r
	}()
	if err := decodeReport(message, string(message), r, s.requests); err != nil {
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
	s.assignments.Report(time.Now(), s.domain, r.usages)
	return nil
}

// sendActions sends actions to the client, until the stream ends.
func (s *quotaStream) sendActions(ctx context.Context) error {
	var all []assigner.Action
	for {
		var err error
		if all, err = s.assignments.Next(ctx, all[:0]); err != nil {
			return err
		}
		for rest := all; len(rest) > 0; {
			var message []byte
			var n int
			if message, n, rest = encodeActions(rest); n == 0 {
				break
			}
			if err := s.wire.Send(message); err != nil {
				return err
			}
		}
		s.assignments.Sent(time.Now())
		clear(all)
		if cap(all) > maxAnswerActions {
			all = nil
		}
	}
}
