// Package assigner manages the quota buckets of all streams: it finds the limit of each bucket, charges reported
// requests to the limit's counters, lets package quota divide the limit, and hands out the assignments.
//
// New creates an Assigner, which works while Run runs. Open returns a Stream for a client. Stream.Report applies a
// message of the client, and Stream.Next waits for actions to send to it. All methods may be called concurrently.
//
// The package is independent of protobuf and gRPC (package server) and of the meaning of rules (package limiter).
package assigner
