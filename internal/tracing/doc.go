// Package tracing sends spans of sampled requests to an OpenTelemetry collector.
//
// It owns the set-up of the SDK and of the OTLP exporters (tracing.go) and which requests are sampled (sample.go). A
// request that is not sampled costs a look at its caller's traceparent and nothing of the SDK; a service that does not
// trace makes no Tracing at all.
//
// A Tracing may be used by any goroutine until Stop. One process has one: the SDK's errors are handled globally.
//
// It does not know what a request is, and sets no attributes on spans: that is for who starts them. What the SDK reads
// from the environment (the OTEL_ variables: endpoint, headers, TLS, timeouts, batches, limits) it reads itself.
package tracing
