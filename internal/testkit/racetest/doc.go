// Package racetest lets a test say that the race detector finds nothing in it.
//
// On says whether the detector is on. Sequential skips a test then: one that asks one thing after the other, most of
// them of commands that end, or one that is a long calculation. Any test may use both at any time. What the detector is
// run on otherwise is in workshop/scripts/test.
package racetest

import "testing"

// Sequential skips a test in which nothing runs concurrently, while the race detector is on.
func Sequential(t testing.TB) {
	t.Helper()
	if On {
		t.Skip("nothing runs concurrently here: it says nothing to the race detector")
	}
}
