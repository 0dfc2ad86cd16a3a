// Package operator answers operators on the admin port: pages over HTTP, and the admin and counter services over gRPC.
// It also serves metrics on a separate port.
//
// A gate protects everything on the admin port. It checks the host name, the origin of web pages, and the token or
// certificate that Options ask for. Behind it are the active rules and the state of rule files, statistics, hot keys,
// the log level, profiles, and the counters of a descriptor, which can be cleared. Parts that are nil in Options are
// not shown.
//
// A Server is made by New and lives while Run runs. Functions and interfaces in Options are called concurrently.
// Clients of the rate limit service do not depend on this package: a port that cannot be opened is logged, and the
// replica runs without it.
//
// The package answers no rate limit requests. The ports for those, which package server opens, do not serve its pages.
package operator
