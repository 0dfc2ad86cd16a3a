// Package intake bounds what a process accepts from its callers: connections, calls in flight, and bytes of messages that
// have not arrived in full, or that a transport holds. One caller cannot use up what the others need. The bounds do not
// depend on the HTTP/2 library.
//
// A Listener wraps a net.Listener. It bounds the number of connections, and divides them between peers when all are in
// use. It returns Conns. A Conn stops reading while its client does not read the answers, and knows its peer and its
// calls.
//
// A transport uses the package at three points. It finds the Conn of a call with Of. It wraps the decrypted bytes of an
// HTTP/2 connection with Conn.Frames, which counts the bytes of unfinished messages. And it calls Calls.Begin before it
// works on a call.
//
// Everything beyond a bound is rejected at once, in constant time. A connection over a bound is closed; none is slowed
// down silently for good.
//
// All methods may be called concurrently, except that one goroutine at a time may read from a Conn.
//
// The package parses neither headers nor messages, sends no answers, and knows nothing about gRPC or rate limits.
package intake
