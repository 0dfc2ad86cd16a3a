// Package service is one replica of the service: a limiter with its counters, rules and overrides, the ports for
// clients, operators and other regions, and its health. New creates a Service from the Options of the packages below,
// and fails if a file or an address cannot be used. Run serves until its context ends.
//
// A Service does not depend on the origin of its options: package main reads them from flags and variables, and names
// these in its errors. The parts that need no port are in package assembly, which package ratelimit links too.
package service
