// Package intake bounds the resources for clients: connections, calls in flight, and memory of transports. One client
// cannot use up the resources of others.
//
// A Listener wraps a net.Listener. It bounds the number of connections, and divides them between peers when all are in
// use. It returns Conns. A Conn stops reading while its client does not read the answers, and tracks its peer and its
// calls.
//
// A transport uses the package at two points. It calls Calls.Begin before it processes a call, and Conn.Hold when the
// memory for a connection grows or shrinks.
//
// Everything beyond a bound is rejected immediately, in constant time. A connection that exceeds a bound is closed;
// none is slowed down silently forever.
//
// All methods may be called concurrently, except that one goroutine at a time may read from a Conn.
//
// The package parses neither headers nor messages, sends no answers, and is independent of gRPC and rate limits.
package intake
