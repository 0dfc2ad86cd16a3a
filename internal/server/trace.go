package server

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// Tracer records spans. It is called concurrently.
type Tracer interface {
	// Sampled reports whether to record a request with this traceparent, or "" without one. It is called for every
	// request, so it must be cheap.
	Sampled(traceparent string) bool
	// Start starts the span of a sampled request that arrived at start.
	Start(ctx context.Context, traceparent, tracestate, name string, start time.Time) (context.Context, trace.Span)
}

const (
	traceparent = "traceparent"
	tracestate  = "tracestate"

	spanOfJSON = "/json" // the span of a gRPC call is named after its method
)

// traceFields are the header fields for a client's trace context: all that parentOf reads.
var traceFields = []string{traceparent, tracestate, "b3", "x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid",
	"x-b3-sampled", "x-b3-flags"}

// traced records the decisions whose trace is sampled. It does not see requests that cannot be decoded: the client's
// span contains their code.
type traced struct {
	Decider

	tracer Tracer
}

// record decides a sampled request, and records the decision.
func (t *traced) record(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
	name := spanOfJSON
	if call, ok := ctx.(*transport.Call); ok {
		name = call.Path()[1:]
	}
	parent, state := parentOf(func(key string) string { return fromCaller(ctx, key) })
	ctx, span := t.tracer.Start(ctx, parent, state, name, now)
	defer span.End() // records a panic too
	if service, method, ok := strings.Cut(name, "/"); ok && name != spanOfJSON {
		span.SetAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service),
			attribute.String("rpc.method", method))
	}
	err := limiter.Decide(ctx, t.Decider, now, req, d)
	describe(span, req, d, err)
	return err
}

// Start implements Decider. A recorded request runs on a goroutine.
func (t *traced) Start(ctx context.Context, now time.Time, b *limiter.Batch, req *limiter.Request, d *limiter.Decision,
	done func(error)) (decided bool, err error) {
	if parent, _ := parentOf(func(key string) string { return fromCaller(ctx, key) }); !t.tracer.Sampled(parent) {
		return t.Decider.Start(ctx, now, b, req, d, done)
	}
	async.Go(func() error { return t.record(ctx, now, req, d) }, done)
	return false, nil
}

// fromCaller returns the value of a metadata key that the client sent, or "" without one.
func fromCaller(ctx context.Context, key string) string {
	if call, ok := ctx.(*transport.Call); ok {
		return call.Header(key)
	}
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// withCaller returns the request's context with the client's trace, in the same form as for gRPC requests.
func withCaller(r *http.Request) context.Context {
	md := metadata.MD{}
	for _, key := range traceFields {
		if value := r.Header.Get(key); value != "" {
			md[key] = []string{value}
		}
	}
	return metadata.NewIncomingContext(r.Context(), md)
}

func describe(span trace.Span, req *limiter.Request, d *limiter.Decision, err error) {
	code := grpcstatus.Code(err)
	span.SetAttributes(
		attribute.Int("rpc.grpc.status_code", int(code)),
		attribute.String("ratelimitd.domain", logging.Shorten(req.Domain)),
		attribute.Int("ratelimitd.descriptors", len(req.Descriptors)),
	)
	if err == nil {
		span.SetAttributes(attribute.String("ratelimitd.code", d.Code.String()))
		return
	}
	if code != codes.InvalidArgument && code != codes.Canceled { // the client's mistake, or the client's choice
		span.SetStatus(otelcodes.Error, grpcstatus.Message(err))
	}
}
