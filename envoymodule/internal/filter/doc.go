// Package filter is the module without its C: it reads the configuration, builds the descriptors of a request, asks the
// engine, and tells Envoy whether to continue, to stop or to wait.
//
// Open creates a Filter from a configuration, and ReadRoute a Route. Begin decides a request, immediately or later;
// Resume and Leave are for a request that had to wait. All three run on the worker of the request. Open, Close and
// ReadRoute run on Envoy's main thread and wait for nothing, except that the Close of the last filter waits until all
// engines have given leased permits back, for two seconds at most.
//
// An engine decides: it has rules, counters, and background work. All filters with the same settings share one engine,
// and all engines with the same settings of the store share their counters. So a new configuration continues the counts
// of the old one.
//
// The package does not depend on Envoy's interface: it reads a request through Stream, and the process through Host.
package filter
