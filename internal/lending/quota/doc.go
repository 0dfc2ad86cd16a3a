// Package quota divides a limit among clients that decide on their own, as pure arithmetic: time and reports go in,
// assignments come out.
//
// RateOf turns limits into a Rate: what a token bucket can express of them. A Bucket divides one Rate among its
// subscribers by their demand, and never hands out more than the rate and the burst. It mints no token that it has not
// saved before: see Bucket.
//
// Nothing here reads a clock, waits, or is safe for concurrent use. Package assigner keeps the buckets of all streams;
// package server speaks the protocol.
package quota
