// Package backend is the contract of the stores, and the arithmetic that they share.
//
// A limiter asks a Store. It sends a Request of Takes, each of which adds hits to one counter under one limit, and gets an
// Outcome for each: numbers only. A store keeps a State for each counter. Settle decides the takes of a request on these
// states: it is the only place that says which hits count.
//
// Each algorithm has a file here: a pure function from a state, a time and hits to the next state and an outcome; when a
// state has expired; how Redis keeps it (a file of package scripts does the same in Lua); and what a hit is worth that was
// taken in advance. A row in algorithms names it. What limits of the algorithm say, as their capacity and their part of a
// counter's key, is a row in package descriptor.
//
// The stores are packages of their own. memory and redis keep states. overlimit keeps refusals, and lease permits, in front
// of another store. All of them pass the suite in backendtest.
//
// Counters that cannot be changed as one, because they live in several places, are reserved and given back by Split. Callers
// that share one counter for want of room are the business of SharedLimit and Inherit.
//
// Functions here are pure, but for Split, and may be called concurrently on different values. Time is always an argument, in
// microseconds since the Unix epoch; durations in outcomes are whole microseconds.
//
// This package does not know what a refusal means: shadow rules, quota mode and overall codes belong to the limiter, which
// says by a Vote how a take's refusal weighs on the request.
package backend
