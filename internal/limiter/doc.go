// Package limiter decides: it turns a request into a decision, against one snapshot of the rules and one backend.
//
// It owns the request's way from the snapshot to the decision: what callers ask and get (request.go, decision.go), the
// snapshot of rules and settings that is swapped as a whole (snapshot.go), the way through it (limiter.go), what a
// descriptor comes down to (resolve.go) and what is asked of the backend for it (prepare.go), what is answered when the
// backend cannot (fallback.go), the verdict per descriptor (judge.go) and per request (combine.go), client headers (headers.go),
// dynamic metadata (metadata.go), explanations (explain.go), looking at counters and clearing them (counters.go), the
// metrics by rule (metrics.go), of which there are only so many (names.go), what the reference calls them
// (statistics.go), and what is told of hot keys (hot.go). All policy lives here: what shadow, quota mode, overrides and replaces mean is known to no other
// package.
//
// A Limiter may be used by any number of goroutines; replacing the snapshot never makes a decision wait.
//
// It knows neither protobuf nor gRPC nor HTTP (package server), and neither reads files (package config) nor counts
// (package backend).
package limiter
