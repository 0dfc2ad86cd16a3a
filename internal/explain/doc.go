// Package explain shows people what rules do with a request: the path through the rule tree with the reason for each step,
// the limits in words, the keys of the counters, and the headers of the answer.
//
// Run makes a Report, which is written as text or JSON. Package descriptor explains the matching. The headers come from a
// limiter that decides the request on empty counters of its own: this package decides nothing. Where nothing matches, a guess
// says what was probably meant.
//
// All functions may be called concurrently.
//
// The package reads no rule files and asks no server: its caller brings the rules, and may add the counters of a server to a
// report.
package explain
