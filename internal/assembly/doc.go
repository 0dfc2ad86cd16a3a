// Package assembly builds what every process that decides has: the chain of stores that its limiter asks, with what keeps the parts of
// the chain in agreement, its rule files, and the source of its overrides. The service, package ratelimit, the module for Envoy and the
// simulators use it, so that the order of the stores is in one place.
//
// A Chain is a store with layers in front of it. Open makes a store in memory or in Redis, its Chain, and the connections. Tasks
// collects the work that runs until the process stops, and closes connections and files then; Background runs it. FollowRules and Follow
// make a limiter use rule files and overrides, and their changes.
//
// The package knows no port and no flag: package ratelimit links it, and must not link a server. So limits across regions, which need a
// port, are a layer that the caller makes.
package assembly
