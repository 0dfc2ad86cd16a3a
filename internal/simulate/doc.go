// Package simulate replays access logs through rules and says what would have been refused.
//
// It owns the run (run.go): logs are read (intake.go), put in order within a window of time (order.go) and gathered into batches
// (batch.go); the real engine, a limiter and a memory store on a clock that follows the log, decides them (engine.go),
// twice where two folders of rules are compared; what came of it is counted over time (timeline.go), by caller
// (callers.go) and what refused each (blame.go), and by rule (rules.go), all of it within bounds, and becomes a Report (summary.go, report.go). Rule folders are read
// by folder.go.
//
// Reading is one goroutine, each engine another, and Run's own counts: a run uses the processors it gets and its outcome
// does not depend on them. Runs share nothing and may be concurrent.
//
// It decides nothing itself (package limiter), knows no format of a log (package accesslog) and writes no report
// (package report below it).
package simulate
