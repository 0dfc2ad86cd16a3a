// Package explain tells what rules make of a request, for people: the way down the tree of rules and why, the limits in
// words, the counters' keys, and the headers that a client would get.
//
// It owns the report (report.go), how it comes about (run.go), what was probably meant where nothing matches (guess.go), the
// state of a counter as people read it (state.go), and how a report is written (text.go, json.go). Matching is explained by
// package descriptor, and headers come from package limiter, which decides a request on counters of its own that begin
// empty: nothing here decides. All functions may be called concurrently.
//
// It reads no rule files and asks no server: whoever calls it brings the rules, and may put into a report what a server says
// of its counters.
package explain
