// Package terminal writes text for people at a terminal: lines with colours, durations, and text from outside made safe
// to show.
//
// A Writer is for one goroutine; the functions may be called concurrently.
//
// The package does not detect a terminal: the code that calls NewWriter decides about colours.
package terminal
