// Package assigner keeps the quota buckets of all streams: it finds the limit of each bucket, charges what clients
// report to the limit's counters, has package quota divide the limit, and hands out the assignments.
//
// An Assigner is made by New and works while Run runs. Open returns a Stream for a client. Its Report takes a message
// of the client in; its Next waits for what the client must be told. All methods may be called concurrently.
//
// The package knows neither protobuf nor gRPC (package server), and decides nothing about the meaning of rules (package
// limiter).
package assigner
