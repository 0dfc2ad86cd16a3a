// Package intake bounds what this process takes in from callers: connections, calls in flight, and bytes of messages that
// have not arrived in full. It exists so that one caller cannot use up what the others need, and so that these bounds do
// not depend on which library speaks HTTP/2.
//
// A Listener wraps a net.Listener. It bounds the connections, and shares them out between peers when there are as many as
// there may be. The Conns that it returns stop reading from a client that does not read its answers, and know their peer
// and their calls. A transport finds the Conn of a call with Of, wraps the plain text of an HTTP/2 connection in
// Conn.Frames, which counts what the frames bring along, and asks Calls before it works on a call.
//
// Whatever is refused is refused at once, in constant time. A connection is closed, never silently slowed down for good.
//
// All methods may be called concurrently, except that one goroutine at a time reads from a Conn.
//
// The package does not parse headers or messages, answers nothing, and knows nothing about gRPC or rate limits.
package intake
