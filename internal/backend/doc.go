// Package backend is the contract of the counters and their arithmetic.
//
// It owns what a limiter asks of a store (take.go: Take, Request, Outcome), what happens to the takes of one request
// (settle.go), and for each algorithm the pure function from a counter's state, a time and hits to the next state and
// an outcome (one file each). Counters that cannot be changed as one are reserved and given back by split.go, reset.go
// says what clearing one means, and shared.go what a counter means that several callers share. The stores
// are packages of their own: memory and redis keep states; overlimit keeps refusals and lease permits in front of them.
// The stores share the conformance suite in backendtest.
//
// Functions here are pure, but for Split, and may be called concurrently on different values. Time is always an argument, in
// microseconds since the Unix epoch; durations in outcomes are whole microseconds.
//
// It does not know what a refusal means: shadow rules, quota mode and overall codes belong to the limiter, which says
// by a Vote how a take's refusal weighs on the request.
package backend
