// Package tracing sends spans of sampled requests to an OpenTelemetry collector.
//
// Start sets up the SDK and an OTLP exporter. Sampled decides, from the client's traceparent, whether to record a
// request. A request that is not sampled costs only this check, and does not reach the SDK. A service without tracing
// has no Tracing.
//
// A Tracing may be used by any goroutine until Stop. A process has at most one, because the SDK's errors are handled
// globally.
//
// The package is independent of the requests and sets no attributes on spans: the code that starts a span does. The SDK
// itself reads the OTEL_ variables of the environment (endpoint, headers, TLS, timeouts, batches, limits).
package tracing
