package redis

import "time"

// Keys that replicas share in addition to counters, without the common prefix. No counter has such a key: ratelimitd's
// counter keys contain a |, envoyproxy/ratelimit's a _.
const (
	ReplicasKey = "ratelimitd-replicas" // the list of replicas: Store.Heartbeat
	// first part of the keys that reveal the layout behind the address: FindLayout
	ProbeKey         = "ratelimitd-probe"
	InvalidationsKey = "{invalidations}" // the stream about counters that were cleared or refunded: Invalidations
)

// DefaultLyftJitter is the random time by which keys of descriptor.KeysLyft live longer than their window, unless the
// operator sets another.
const DefaultLyftJitter = 300 * time.Second
