// Package envoytest makes the header blocks that Envoy sends with the calls of its rate limit filter, for tests and
// benchmarks.
//
// Envoy does not encode like Go's clients: the path is a literal in every block, and with tracing each call puts a
// trace context into the dynamic table, so no two blocks are equal. An Encoder is one connection's; Calls returns the
// blocks of a whole connection.
//
// A test in workshop/e2e compares the blocks byte by byte with those of the installed Envoy. The package does not need
// Envoy, and sends nothing.
package envoytest
