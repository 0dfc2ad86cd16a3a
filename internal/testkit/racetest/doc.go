// Package racetest lets a test declare that the race detector finds nothing in it.
//
// On is true while the detector is on. Sequential then skips a test: one that asks one thing after the other, most of
// them commands that end, or one that is a long calculation. Any test may use both at any time. workshop/scripts/test
// decides which tests run with the detector.
package racetest

import "testing"

// Sequential skips a test in which nothing runs concurrently, while the race detector is on.
func Sequential(t testing.TB) {
	t.Helper()
	if On {
		t.Skip("nothing runs concurrently here: it says nothing to the race detector")
	}
}
