package tracing

import (
	"context"
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
//
// Every request of a caller that traces comes here, so nothing is decoded that only has to be valid.
func flagOf(traceparent string) (sampled, ok bool) {
	const ids, flags, end = 3, 53, 55
	if len(traceparent) < end || traceparent[2] != '-' || traceparent[35] != '-' || traceparent[52] != '-' {
		return false, false
	}
	version := traceparent[:2]
	if version == "ff" || version == "00" && len(traceparent) != end || (hexDigits[version[0]]|hexDigits[version[1]])&noDigit != 0 {
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

// isID says whether an id is one: digits in small letters, not all of them zero.
func isID(text string) bool {
	var all byte
	for i := range len(text) {
		all |= hexDigits[text[i]]
	}
	return all != 0 && all&noDigit == 0
}

const (
	known   = 3 // the flags of version 00: sampled, and that the trace's id is random
	noDigit = 0x80
)

// hexDigits are the values of hexadecimal digits in small letters, the only ones that are valid.
var hexDigits = func() (values [256]byte) {
	for c := range values {
		values[c] = noDigit
	}
	for i, c := range []byte("0123456789abcdef") {
		values[c] = byte(i)
	}
	return values
}()

// Start begins the span of a request that is to be recorded, which arrived at start. The span belongs to the caller's
// trace, if it sent one. Who starts a span ends it.
func (t *Tracing) Start(ctx context.Context, traceparent, tracestate, name string, start time.Time) (context.Context, trace.Span) {
	if traceparent != "" {
		ctx = t.context.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate})
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start))
}
