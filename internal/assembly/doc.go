// Package assembly builds the parts that every deciding process needs: the chain of stores that its limiter asks, the
// messages that keep the chains of replicas in agreement, and the source of its overrides. The service, package
// redisstore, the module for Envoy and the simulators use it, so that the order of the stores is in one place.
//
// A Chain is a store with layers in front of it. Open returns a store in memory or in Redis, its Chain, and the
// connections. The parts of a limiter without Redis, such as Tasks, are in package parts.
//
// The package uses no port and no flag: package redisstore links it, and must not link a server. So limits across
// regions, which need a port, are a layer that the calling package provides.
package assembly
