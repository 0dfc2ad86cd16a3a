package redis

import "time"

// The keys, without the common prefix, of what replicas share besides counters. No counter has such a key: ratelimitd's
// counter keys contain a |, envoyproxy/ratelimit's a _.
const (
	ReplicasKey = "ratelimitd-processes" // the list of replicas: Store.Heartbeat
	// the first part of the keys that show what is behind the address: FindLayout
	ProbeKey         = "ratelimitd-probe"
	InvalidationsKey = "{invalidations}" // the stream about counters that were cleared or refunded: Invalidations
)

// DefaultLyftJitter is the random time by which keys of descriptor.KeysLyft live longer than their window, unless the
// operator sets another.
const DefaultLyftJitter = 300 * time.Second
