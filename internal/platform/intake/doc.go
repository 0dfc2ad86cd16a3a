// Package intake bounds what a process accepts from its callers: connections, calls in flight, and the bytes that a
// transport holds for them. One caller cannot use up what the others need.
//
// A Listener wraps a net.Listener. It bounds the number of connections, and divides them between peers when all are in
// use. It returns Conns. A Conn stops reading while its client does not read the answers, and knows its peer and its
// calls.
//
// A transport uses the package at two points. It calls Calls.Begin before it works on a call, and Conn.Hold when it
// keeps more bytes for a connection, or less.
//
// Everything beyond a bound is rejected at once, in constant time. A connection over a bound is closed; none is slowed
// down silently for good.
//
// All methods may be called concurrently, except that one goroutine at a time may read from a Conn.
//
// The package parses neither headers nor messages, sends no answers, and knows nothing about gRPC or rate limits.
package intake
