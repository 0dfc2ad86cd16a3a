package envoytest

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// Tracing is the kind of trace context in Envoy's calls.
type Tracing int

// The settings that Envoy may have for tracing.
const (
	Untraced Tracing = iota
	OpenTelemetry
	Zipkin
)

// Tracings has all of them.
var Tracings = []Tracing{Untraced, OpenTelemetry, Zipkin}

// String is the kind's name in the names of tests and benchmarks.
func (t Tracing) String() string { return [...]string{"untraced", "OpenTelemetry", "Zipkin"}[t] }

// Fields are the header fields of a call, in Envoy's order. The trace context is new in each call. The timeout is 10
// seconds, so that no call fails that queues in a benchmark.
func Fields(t Tracing, path, authority string) []hpack.HeaderField {
	const te, timeout, contentType = "trailers", "10000m", "application/grpc"
	fields := []string{":method", "POST", ":path", path, ":authority", authority, ":scheme", "http", "te", te,
		"grpc-timeout", timeout, "content-type", contentType}
	switch t {
	case Untraced:
	case OpenTelemetry:
		fields = append(fields, "traceparent", fmt.Sprintf("00-%016x%016x-%016x-01", rand.Uint64(), rand.Uint64(),
			rand.Uint64()), "tracestate", "")
	case Zipkin:
		trace, span := fmt.Sprintf("%016x", rand.Uint64()), fmt.Sprintf("%016x", rand.Uint64())
		fields = append(fields, "x-b3-traceid", trace, "x-b3-spanid", span, "x-b3-parentspanid", trace, "x-b3-sampled", "1")
	}
	fields = append(fields, "x-envoy-internal", "true", "x-forwarded-for", "192.0.2.2", "x-envoy-expected-rq-timeout-ms",
		"10000")
	all := make([]hpack.HeaderField, 0, len(fields)/2)
	for i := 0; i < len(fields); i += 2 {
		all = append(all, hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return all
}

// Calls returns the blocks of a connection's calls: the blocks of the first calls, and after them blocks that a client
// may send again and again. It may, because the table then looks as it did before them, except for the values that no
// block refers to.
func Calls(t Tracing, path, authority string) (first, repeated [][]byte) {
	var e Encoder
	var blocks [][]byte
	seen := make(map[string]int) // how many blocks led to a table with these names
	for {
		var names strings.Builder
		for _, f := range e.entries {
			names.WriteString(f.Name + "\n")
		}
		if n, ok := seen[names.String()]; ok {
			return blocks[:n], blocks[n:]
		}
		seen[names.String()] = len(blocks)
		blocks = append(blocks, e.Append(nil, Fields(t, path, authority)...))
	}
}
