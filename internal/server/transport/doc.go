// Package transport is an HTTP/2 server for gRPC calls. It makes small unary calls of a few methods cheap. Every other
// method is a stream, with a goroutine for each call; Services are services of generated code on such streams.
//
// A Server serves listeners. One goroutine reads each connection. It collects the calls that one read has delivered,
// and passes them to the Handler together. Answers go into the connection's output. The output is written once, after
// the whole batch, and never blocks: what the kernel does not take at once is written by a goroutine of its own. In the
// steady state a call costs no goroutine, no context tree and no allocation.
//
// What comes in is decoded by the Framer of golang.org/x/net, and header blocks by a headerReader. Answers are constant
// header blocks and the bytes of the message.
//
// All methods of Server may be called concurrently. A Call is used by one goroutine at a time until it is answered.
//
// The package knows nothing about rate limits. It does not serve HTTP/1, does not push, and ignores priorities.
package transport
