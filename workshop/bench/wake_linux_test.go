package main

import (
	"testing"
	"time"
)

// Timers of an idle process are precise to much less than a millisecond. The best of many counts, because the machine
// may be busy.
func TestWakeEvery(t *testing.T) {
	stop, err := wakeEvery(timerLateness)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	const wait = 100 * time.Microsecond
	best := time.Hour
	for range 200 {
		start := time.Now()
		<-time.After(wait)
		best = min(best, time.Since(start))
	}
	if best > 5*wait {
		t.Errorf("waiting for %v took %v or more", wait, best)
	}
}
