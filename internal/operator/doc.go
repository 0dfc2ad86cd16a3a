// Package operator answers operators on the admin port: pages over HTTP, and the admin and counter services over gRPC.
// It also serves metrics on a port of their own.
//
// A gate stands before everything on the admin port. It checks the host name, the origin of web pages, and the token or
// certificate that Options ask for. Behind it are the active rules and the state of rule files, statistics, hot keys,
// the log level, profiles, and the counters of a descriptor, which can be cleared. What is nil in Options is not shown.
//
// A Server is made by New and lives while Run runs. What Options contain is called concurrently. No caller depends on
// this package: a port that cannot be opened is logged, and the process runs without it.
//
// The package answers no rate limit requests, and no port for callers has its pages: that is package server.
package operator
