package server

import (
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// parentOf returns the client's span as a W3C traceparent and tracestate. As in envoyproxy/ratelimit, the B3 headers
// take precedence over the W3C headers where both name a span, and B3's single header over its other headers.
func parentOf(header func(name string) string) (parent, state string) {
	if single := header("b3"); single != "" {
		traceID, rest, _ := strings.Cut(single, "-")
		spanID, rest, decided := strings.Cut(rest, "-")
		state, parentID, child := strings.Cut(rest, "-")
		flags, ok := sampling(state)
		ok = ok && decided == (state != "") && child == (parentID != "")
		if parent = fromB3(traceID, spanID, parentID, flags); ok && parent != "" {
			return parent, ""
		}
	}
	if id := header("x-b3-traceid"); id != "" {
		sampled, debug := strings.ToLower(header("x-b3-sampled")), header("x-b3-flags") == "1"
		switch sampled {
		case "true":
			sampled = "1"
		case "false":
			sampled = "0"
		case "d": // only the single header has it
			sampled = "invalid"
		}
		flags, ok := sampling(sampled)
		if debug {
			flags = "01"
		}
		if parent = fromB3(id, header("x-b3-spanid"), header("x-b3-parentspanid"), flags); ok && parent != "" {
			return parent, ""
		}
	}
	return header(traceparent), header(tracestate)
}

// sampling converts B3's decision into W3C flags. If the client leaves the decision open, the request is not sampled,
// as in envoyproxy/ratelimit.
func sampling(state string) (flags string, ok bool) {
	switch state {
	case "1", "d":
		return "01", true
	case "", "0":
		return "00", true
	}
	return "", false
}

// fromB3 returns the traceparent of a span, or "" if an id is invalid. A trace id may have half the usual length. The
// id of the span's parent, which may be empty, is only checked.
func fromB3(traceID, spanID, parentID, flags string) string {
	if len(traceID) == 16 {
		traceID = "0000000000000000" + traceID
	}
	_, err := trace.TraceIDFromHex(traceID)
	if err == nil {
		_, err = trace.SpanIDFromHex(spanID)
	}
	if err == nil && parentID != "" {
		_, err = trace.SpanIDFromHex(parentID)
	}
	if err != nil {
		return ""
	}
	return "00-" + traceID + "-" + spanID + "-" + flags
}
