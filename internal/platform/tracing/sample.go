package tracing

import (
	"context"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Sampled decides whether to record a request with this traceparent of its client, or "" without one. The client's
// decision holds; without one the sampling rate decides.
func (t *Tracing) Sampled(traceparent string) bool {
	if sampled, ok := flagOf(traceparent); ok {
		return sampled
	}
	return t.rate >= 1 || t.rate > 0 && rand.Float64() < t.rate
}

// flagOf decodes the sampled flag of a W3C traceparent, version-traceid-spanid-flags. Later versions may append more
// fields. ok is false if the traceparent is invalid. The ids are validated but not decoded, because this runs for every
// request of a client that traces.
func flagOf(traceparent string) (sampled, ok bool) {
	const ids, flags, end = 3, 53, 55
	if len(traceparent) < end || traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-' {
		return false, false
	}
	version := traceparent[:2]
	if version == "ff" || version == "00" && len(traceparent) != end ||
		(hexDigits[version[0]]|hexDigits[version[1]])&noDigit != 0 {
		return false, false
	}
	if !isID(traceparent[ids:ids+32]) || !isID(traceparent[36:52]) {
		return false, false
	}
	high, low := hexDigits[traceparent[flags]], hexDigits[traceparent[flags+1]]
	if (high|low)&noDigit != 0 || version == "00" && high<<4|low > known {
		return false, false
	}
	return trace.TraceFlags(high<<4 | low).IsSampled(), true
}

// isID reports whether a text is a valid id: hexadecimal digits in lower case, not all zero.
func isID(text string) bool {
	var all byte
	for i := range len(text) {
		all |= hexDigits[text[i]]
	}
	return all != 0 && all&noDigit == 0
}

const (
	known   = 3 // the flags of version 00: sampled, and random trace id
	noDigit = 0x80
)

// hexDigits maps lower-case hexadecimal digits to their values. Upper case is invalid.
var hexDigits = func() (values [256]byte) {
	for c := range values {
		values[c] = noDigit
	}
	for i, c := range []byte("0123456789abcdef") {
		values[c] = byte(i)
	}
	return values
}()

// Start starts the span of a sampled request that arrived at start. The span joins the client's trace, if there is one.
// The caller must end the span.
func (t *Tracing) Start(ctx context.Context, traceparent, tracestate, name string,
	start time.Time) (context.Context, trace.Span) {
	if traceparent != "" {
		ctx = t.context.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate})
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start))
}
