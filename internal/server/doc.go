// Package server answers callers: rate limit requests over gRPC and as JSON, streams of the rate limit quota
// service, and health checks.
//
// A request becomes a limiter.Request, a Decider decides it, and its decision becomes an answer. Decoding and encoding
// are pure functions between bytes and plain structs; they replace the generated messages on the hot path. Tracing
// wraps the decider, so that it costs nothing while it is off. Bounds on requests, calls and connections apply before
// memory is spent.
//
// A quota stream reads reports and sends assignments in goroutines of its own. QuotaStreams decides what is assigned.
//
// A Server is made by New and lives while Run runs. SetServing and SetMissing may be called concurrently at any time.
// What Options contain is called concurrently.
//
// The package decides nothing about limits: package limiter does. Pages and services for operators are in package
// operator. It reads no environment and no flags: cmd does.
package server
