// Package filter is the module without its C: it reads the configuration, makes descriptors of a request, asks the engine,
// and says what Envoy is to do.
//
// Open makes a Filter of a configuration, and ReadRoute a Route. Begin decides a request, at once or later; Resume and Leave
// are for a request that had to wait. All three run on the worker of the request. Open, Close and ReadRoute run on Envoy's
// main thread and wait for nothing, except that the Close of the last filter of an engine waits until leased permits are
// given back, for two seconds at most.
//
// An engine is what decides: rules, counters, and work in the background. All filters with the same settings share one, and what counts
// is shared by all engines with the same store, so that a new configuration goes on with the numbers of the old one.
//
// The package does not know how Envoy is reached: Stream is what it needs of a request, and Host of the process.
package filter
