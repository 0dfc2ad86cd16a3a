// Package accesslog turns the lines of access logs into the requests that a proxy would have sent to the service.
//
// A Mapping describes the format of the log (text with a pattern, as Envoy and nginx write it; JSON lines), the time,
// and the descriptors. It is read from a file, or from parts in flags. The language is a table with one row for each
// key; the tables in docs/reference/log-keys.md come from the same rows. A Reader returns the lines of one log, and
// Mapping.Build makes the request for a line. Simulations read millions of lines, so reading a line of text allocates
// nothing; the library that reads JSON does.
//
// A Mapping is immutable and may be used by any number of goroutines; a Reader by only one.
//
// The package does not decide requests, keep lines, or sort lines by time: package simulate does.
package accesslog
