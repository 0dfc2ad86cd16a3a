// Package serviceclient is the client of the command line: it gets decisions, one or many at a rate, explanations and
// counters from a running server, and writes them as text or JSON.
//
// A Client may be used concurrently.
//
// It has no rules and no state. It never retries, because a request that is sent twice counts twice.
package serviceclient
