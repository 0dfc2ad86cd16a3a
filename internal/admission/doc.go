// Package admission is what the middleware for HTTP and for gRPC have in common: to ask a decider, wait for a turn and end
// reservations (Gate); the headers of an answer; values of entries with a bounded size; and the waits of clients that repeat
// refused requests (Waits).
//
// It knows neither protocol.
package admission
