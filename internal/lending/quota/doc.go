// Package quota divides a limit among clients that decide for themselves. It is pure arithmetic: time and reports go
// in, assignments come out.
//
// RateOf turns limits into a Rate, the part of them that a token bucket can express. A Bucket divides one Rate among
// its subscribers by their demand, and never hands out more than the rate and the burst. It never hands out a token
// that was not saved first: see Bucket.
//
// Nothing here reads a clock, waits, or is safe for concurrent use. Package assigner manages the buckets of all
// streams; package server implements the protocol.
package quota
