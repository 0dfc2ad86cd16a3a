// Package backend defines the contract of the stores, and the arithmetic that they share.
//
// A limiter sends a Request to a Store. A Request holds Takes: each adds hits to one counter under one limit. The store
// answers each take with an Outcome: numbers only. A store keeps a State for each counter. Settle decides the takes of
// a request on these states: it is the only place that decides which hits count.
//
// Each algorithm has a file here. The file contains a pure function from a state, a time and hits to the next state and
// an outcome; when a state expires; how Redis keeps the state (a file of package scripts does the same in Lua); and how
// long a hit that was taken in advance stays valid. Each algorithm has a row in algorithms. The properties of its
// limits, such as their capacity and their part of a counter's key, are a row in package descriptor.
//
// Each store has its own package. memory and redis keep states. overlimit keeps denials and lease keeps permits, each
// in front of another store. All stores pass the suite in backendtest.
//
// Split settles takes whose counters live in several places and cannot be changed as one: it reserves hits in each
// place, and gives them back if the takes are denied. SharedLimit and Inherit are for a counter that several customers
// share because a store has no room for a counter for each.
//
// Functions here are pure, except Split, and may be called concurrently on different values. Time is always an
// argument, in microseconds since the Unix epoch; durations in outcomes are whole microseconds.
//
// This package does not interpret denials: shadow rules, quota mode and overall codes belong to the limiter. The
// limiter gives each take a Vote, which decides how its denial affects the request.
package backend
