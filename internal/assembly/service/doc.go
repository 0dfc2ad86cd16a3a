// Package service is one replica of the service: a limiter with its counters, rules and overrides, the ports for
// callers, operators and other regions, and its health. New makes a Service from the Options of the packages below, and
// fails if a file or an address cannot be used. Run serves until its context ends.
//
// A Service does not know where its options come from: package main makes them from flags and variables, and names
// these in its errors. What depends on no port is in package assembly, which package ratelimit links too.
package service
