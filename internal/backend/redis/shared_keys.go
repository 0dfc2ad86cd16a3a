package redis

import "time"

// The keys, after the prefix of all keys, of what the processes share besides counters. No counter has such a key: ours contain a
// | in their keys, those of envoyproxy/ratelimit a _.
const (
	ReplicasKey      = "ratelimitd-processes" // the list of processes: Store.Heartbeat
	InvalidationsKey = "{invalidations}"      // the stream about counters that were cleared or refunded: Invalidations
)

// DefaultLyftJitter is the random time by which keys of descriptor.KeysLyft live longer than their window, unless the operator sets
// another.
const DefaultLyftJitter = 300 * time.Second
