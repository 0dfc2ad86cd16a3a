// Package gate is the common part of the middleware for HTTP and the middleware for gRPC. Request builds a request from
// keys, with values of a bounded size. A Gate asks a decider, waits for the turn of a request and ends reservations.
// Headers builds the headers of an answer. Waits are the pauses of a client that repeats denied requests.
//
// The package is independent of both protocols.
package gate
