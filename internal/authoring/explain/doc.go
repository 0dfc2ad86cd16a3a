// Package explain shows people how rules handle a request: the path through the rule tree with the reason for each
// step, the limits in words, the keys of the counters, and the headers of the answer.
//
// Run makes a Report, which can be written as text or JSON. Package descriptor explains the matching. The headers come
// from a separate limiter, which decides the request with empty counters: this package decides nothing. If nothing
// matches, the report suggests a probable correction.
//
// All functions may be called concurrently.
//
// The package reads no rule files and calls no server. The code that uses it passes the rules, and may add the counters
// of a server to a report.
package explain
