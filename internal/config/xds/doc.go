// Package xds keeps rules up to date from a server that sends them over xDS: the aggregated discovery service, state of
// the world, with resources of the type ratelimit.config.ratelimit.v3.RateLimitConfig.
//
// It owns the stream and what is answered on it: Client (client.go) connects again and again and tells how that goes
// (metrics.go), session.go is one stream, dial.go the connection under it, node.go who the server is told that asks.
// backoff.go says how long to wait, before connecting and before a server is told again that what it sends is refused.
// resource.go turns a resource into the values of a rule file, with the fields that the published Go code does not have
// in newer.go; what rules may say, and what is wrong with them, package config alone knows.
//
// A Client's Run is called once. Its other methods may be called by any goroutine. What is applied is immutable.
//
// It does not decide what rules mean, does not read the environment, and does not serve xDS.
package xds
