// Package gate contains what the middleware for HTTP and the middleware for gRPC share. Request makes a request of
// keys, with values of a bounded size. A Gate asks a decider, waits for the turn of a request and ends reservations.
// Headers makes the headers of an answer. Waits are the pauses of a client that repeats denied requests.
//
// It knows neither protocol.
package gate
