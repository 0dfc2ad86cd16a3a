// Package hotkeys finds the counters that are asked and refused most in the last minute, for each rule, in bounded
// memory.
//
// It owns the sketch (summary.go: Space-Saving with 128 counters, weighted), what a rule is counted in while it is busy
// and how decisions that run at once share that (board.go), how lists are added up (list.go), the budget, the passing of
// time and the metrics (tracker.go), the answer (report.go), and what a counter's key looks like to people (text.go).
//
// # What is promised
//
// A list of a rule has an "at least" and an "at most" for every key it names, and both are true, unless uses were
// dropped (below), which the answer says. They are never further apart than 1/64 of the rule's hits in the time, and a key
// with more than 1/64 of the hits is there for certain; up to 128 keys are counted exactly. The time is sub-windows of ten
// seconds: the answer is about the last 50 to 60 seconds, and says how many.
//
// A summary that forgets gradually (exponential decay), the rejected way, has no sub-windows, but shows scores where
// people expect hits, and its bounds hold for the scores alone. One sketch for all rules, which would need less memory,
// hides the keys of quiet rules behind a loud one.
//
// # What it costs
//
// Rule.Count is for the way of a request: it looks nothing up by name, never waits, and allocates only when a rule
// begins to be busy. A busy rule has one lane to begin with. Where two decisions meet in a lane the second one takes
// another or makes one, up to as many as there are processors; where all are taken, the use is dropped, and counted as
// dropped. When lists run out, rules share one, which the answer names "overflow".
//
// A Tracker and its Rules may be used by any goroutine.
//
// It knows no rules, requests or decisions: who counts says what a use and what a refusal is.
package hotkeys
