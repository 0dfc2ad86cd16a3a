// Package transport is an HTTP/2 server for gRPC calls, optimized for small unary calls of a few methods. Every other
// method is a stream, with a goroutine for each call; Services implements services of generated code on such streams.
//
// A Server serves listeners. One goroutine reads each connection. It collects the calls of one read, and passes them to
// the Handler together. Answers go into the connection's output. The output is written once, after the whole batch, and
// never blocks: data that the kernel does not accept immediately is written by a separate goroutine. In the steady
// state a call costs no goroutine, no context tree and no allocation.
//
// The Framer of golang.org/x/net decodes frames, and a headerReader decodes header blocks. Answers are constant header
// blocks plus the bytes of the message.
//
// All methods of Server may be called concurrently. A Call is used by one goroutine at a time until it is answered.
//
// The package is independent of rate limits. It does not serve HTTP/1, does not push, and ignores priorities.
package transport
