// Package assembly builds what every process that decides has: the chain of stores that its limiter asks, with what
// keeps the parts of the chain in agreement, and the source of its overrides. The service, package redisstore, the
// module for Envoy and the simulators use it, so that the order of the stores is in one place.
//
// A Chain is a store with layers in front of it. Open makes a store in memory or in Redis, its Chain, and the
// connections. What a limiter without Redis needs, such as Tasks, is in package parts.
//
// The package knows no port and no flag: package redisstore links it, and must not link a server. So limits across
// regions, which need a port, are a layer that the caller makes.
package assembly
