// Package tracing sends spans of sampled requests to an OpenTelemetry collector.
//
// Start sets up the SDK and an OTLP exporter. Sampled decides, from the caller's traceparent, whether to record a
// request. A request that is not sampled costs that one look at the traceparent, and does not reach the SDK. A service
// that does not trace makes no Tracing.
//
// A Tracing may be used by any goroutine until Stop. A process has at most one, because the SDK's errors are handled
// globally.
//
// The package knows nothing about requests and sets no attributes on spans: the code that starts a span does. The SDK
// itself reads the OTEL_ variables of the environment (endpoint, headers, TLS, timeouts, batches, limits).
package tracing
