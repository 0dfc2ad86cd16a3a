// Package gate is what the middleware for HTTP and for gRPC have in common. Request makes a request of keys, with values of a
// bounded size. A Gate asks a decider, waits for the turn of a request and ends reservations. Headers are those of an answer. Waits
// are the pauses of a client that repeats refused requests.
//
// It knows neither protocol.
package gate
