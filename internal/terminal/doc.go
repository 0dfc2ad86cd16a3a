// Package console writes for people at a terminal.
//
// It owns the Writer with its colours (writer.go) and how times are written (span.go). A Writer is one goroutine's; the
// functions may be called concurrently.
//
// It does not find out whether somebody is looking: whoever makes a Writer says whether colours are wanted.
package terminal
