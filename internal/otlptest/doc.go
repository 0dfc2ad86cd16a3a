// Package otlptest is a collector of OpenTelemetry's spans, for tests.
//
// It owns receiving them over OTLP, by gRPC and by HTTP, on a socket (collector.go). A Collector may be asked by any
// goroutine while spans arrive.
//
// It is for tests alone, and forwards nothing.
package otlptest
