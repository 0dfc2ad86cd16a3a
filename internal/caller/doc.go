// Package caller asks a running server: for decisions, one or many, and for counters.
//
// It owns the connection (dial.go), one decision (decide.go) and many at a rate (load.go), looking at counters and clearing
// them (counters.go), and how the answers are written (text.go, json.go). A Client may be used by any number of goroutines.
//
// It is the command line's: it knows nothing of rules, keeps no state, and tries nothing twice, since a request that is sent
// twice counts twice.
package caller
