package routers

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/ratelimitd/ratelimitd/limits"
)

// OpenTelemetry is an Observer of decisions. Each becomes an event of the current span and is counted.
type OpenTelemetry struct {
	Decisions metric.Float64Histogram // duration of a decision, in seconds
}

// Decided implements limits.Observer.
func (o OpenTelemetry) Decided(ctx context.Context, r *limits.Request, d *limits.Decision, err error,
	took time.Duration) {
	about := []attribute.KeyValue{
		attribute.String("ratelimit.domain", r.Domain),
		attribute.Bool("ratelimit.allowed", d.Allowed),
		attribute.Bool("ratelimit.failed", err != nil),
	}
	trace.SpanFromContext(ctx).AddEvent("rate limit", trace.WithAttributes(about...))
	o.Decisions.Record(ctx, took.Seconds(), metric.WithAttributes(about...))
}
