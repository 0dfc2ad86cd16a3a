// Package simulate replays access logs through rules and reports which requests would have been denied.
//
// Run reads logs, sorts their lines within a window of time, and passes batches of requests to one or two engines. An
// engine is the real limiter with a memory store, on a clock that follows the log. With two directories of rules there
// are two engines, and Run compares their verdicts. It counts results over time, by rule and by customer, all in
// bounded memory, and returns a Report.
//
// One goroutine reads, one runs each engine, and the goroutine that called Run counts. The result does not depend on
// the number of processors. Runs share nothing and may be concurrent.
//
// The package makes no decisions (package limiter does), parses no log formats (package accesslog does), and writes no
// reports (package simulate/report does).
package simulate
