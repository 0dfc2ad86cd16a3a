package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	garbageBytes = 128 << 20 // target for garbage between two collections

	// GOGC stays between these. The high one makes collections rare while the heap is small; the low one is Go's default.
	maxPercent, minPercent = 800, 100

	// minChange is how far the target must move, in percent of the present one, before it is set: setting it stops the
	// world for a moment.
	minChange = 10

	finalized = 16 // bytes of the object whose finalizer runs after each collection
)

// tuneGC sets GOGC for the present heap, now and after every collection, so that garbage stays near garbageBytes. present
// is the active GOGC.
func tuneGC(present int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(live)
	percent := gcPercent(live[0].Value.Uint64() + live[1].Value.Uint64())
	if math.Abs(float64(percent-present)) > float64(present)*minChange/100 {
		debug.SetGCPercent(percent)
		present = percent
	}
	runtime.SetFinalizer(new([finalized]byte), func(*[finalized]byte) { tuneGC(present) })
}

// gcPercent returns the GOGC for a heap with this many live bytes.
func gcPercent(live uint64) int {
	if live == 0 {
		return maxPercent
	}
	return int(min(max(garbageBytes*100/live, minPercent), maxPercent))
}
