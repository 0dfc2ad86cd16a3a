// Package endpoint contains what every port of the process needs, whether callers, operators or scrapers use it:
// opening the listener, time limits for HTTP, recovery from panics, and a stop that ends in time.
//
// Shared holds what the ports of a process have in common: the log, the metrics, and the settings that apply to all of
// them. One Shared is made per process, and the servers get it, because a metric can be registered only once. Serve
// runs one server on one listener. The Stop functions let requests finish and then cut them off.
//
// Everything here may be called concurrently.
//
// The package answers no request itself, and it does not bound connections: that is package intake.
package endpoint
