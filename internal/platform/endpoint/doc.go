// Package endpoint contains the common parts of all ports of the process, for clients, operators and scrapers: opening
// the listener, time limits for HTTP, recovery from panics, and a stop that ends in time.
//
// Shared holds the log, the metrics and the settings of all ports. A process creates a single Shared for its servers,
// because a metric can be registered only once. Serve runs one server on one listener. The Stop functions let requests
// finish and then cut them off.
//
// All functions and methods may be called concurrently.
//
// The package does not answer requests, and it does not bound connections: that is the task of package intake.
package endpoint
