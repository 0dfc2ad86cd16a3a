// Package hotkeys finds, for each rule, the counters that were used and denied most in the last minute, in bounded
// memory.
//
// A Tracker hands out a Rule for each rule of the configuration. A decision calls Rule.Count for every counter that it
// uses. Tracker.Top answers a Query with a Report. Inside, a rule counts in Space-Saving sketches of 128 keys each.
//
// # Guarantees
//
// A report has a lower and an upper bound for the hits of every key that it lists. Both hold, unless uses were dropped
// (see below), and then the report has their number. The bounds differ by at most 1/64 of the rule's hits in that time.
// A key with more than 1/64 of the hits is always listed. Up to 128 keys are counted exactly. Time is divided into
// sub-windows of ten seconds: a report covers the last 50 to 60 seconds, and has the exact time.
//
// Two alternatives were rejected. A sketch with exponential decay needs no sub-windows, but it has scores where people
// expect hits, and its bounds hold for the scores only. One sketch for all rules needs less memory, but busy rules hide
// the keys of quiet ones.
//
// # Cost
//
// Rule.Count runs on the path of a request. It does no lookup by name, never waits, and allocates only when a rule
// becomes busy. A busy rule starts with one lane. When two concurrent decisions meet in a lane, the second one takes
// another lane or adds one, up to the number of processors. If all are taken, the use is dropped and counted as
// dropped. When all lists are in use, further rules share one, which reports name "overflow".
//
// A Tracker and its Rules may be used by any goroutine.
//
// The package is independent of rules, requests and decisions: the code that calls it decides whether to count a use or
// a denial.
package hotkeys
