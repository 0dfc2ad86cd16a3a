// Package otlptest has a collector of OpenTelemetry spans for tests.
//
// A Collector receives spans over OTLP, by gRPC or HTTP, on a socket. Any goroutine may read them while more arrive.
//
// The package is for tests only, and forwards nothing.
package otlptest
