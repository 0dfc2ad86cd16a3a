package tracing

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Sampled says whether a request is to be recorded whose caller sent this traceparent, "" if none: as the caller decided
// for its trace, else by chance.
func (t *Tracing) Sampled(traceparent string) bool {
	if sampled, ok := flagOf(traceparent); ok {
		return sampled
	}
	return t.rate >= 1 || t.rate > 0 && rand.Float64() < t.rate
}

// flagOf reads the flag of a W3C traceparent, version-traceid-spanid-flags; later versions may have more after it. It is
// false if there is none that can be read.
func flagOf(traceparent string) (sampled, ok bool) {
	const ids, flags, end = 3, 53, 55
	if len(traceparent) < end || traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-' {
		return false, false
	}
	version, flag := traceparent[:2], traceparent[flags:end]
	if version == "ff" || version == "00" && len(traceparent) != end {
		return false, false
	}
	if _, err := trace.TraceIDFromHex(traceparent[ids : ids+32]); err != nil {
		return false, false
	}
	if _, err := trace.SpanIDFromHex(traceparent[36:52]); err != nil {
		return false, false
	}
	var b [1]byte
	if _, err := hex.Decode(b[:], []byte(flag)); err != nil {
		return false, false
	}
	return b[0]&byte(trace.FlagsSampled) != 0, true
}

// Start begins the span of a request that is to be recorded, which arrived at start. The span belongs to the caller's
// trace, if it sent one. Who starts a span ends it.
func (t *Tracing) Start(ctx context.Context, traceparent, tracestate, name string, start time.Time) (context.Context, trace.Span) {
	if traceparent != "" {
		ctx = t.context.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate})
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start))
}
