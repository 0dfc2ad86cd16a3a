// Package server answers clients: rate limit requests over gRPC and as JSON, streams of the rate limit quota service,
// and health checks.
//
// A request becomes a limiter.Request, a Decider decides it, and its decision becomes an answer. Decoding and encoding
// are pure functions between bytes and plain structs; they replace the generated messages on the hot path. Tracing
// wraps the decider, so it costs nothing while it is off. Bounds on requests, calls and connections apply before memory
// is spent.
//
// A quota stream reads reports and sends assignments on separate goroutines. QuotaStreams decides the assignments.
//
// New creates a Server, which works while Run runs. SetServing and SetMissing may be called concurrently at any time.
// The members of Options are called concurrently.
//
// The package decides nothing about limits: package limiter does. Pages and services for operators are in package
// operator. Environment and flags are the concern of cmd.
package server
