package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	garbageBytes = 128 << 20 // target for garbage between two collections

	// bounds of GOGC: the high one makes collections rare while the heap is small; the low one is Go's default
	maxPercent, minPercent = 800, 100

	// minChange is the smallest change of a target, in percent of the present one, that is applied: setting the target
	// stops the world for a moment.
	minChange = 10

	// besidesHeap is roughly the memory that Go needs for stacks and its runtime, in bytes.
	besidesHeap = 16 << 20

	finalized = 16 // bytes of the object whose finalizer runs after each collection
)

// collection sets the targets of the garbage collector, so that clients and the garbage that they cause take a bounded
// amount of memory. Without clients, garbage stays near garbageBytes. The memory held for clients and the garbage
// together may take 7/4 of the budget for clients: the more memory is held, the less garbage is allowed.
type collection struct {
	held func() int64 // bytes held for clients
	most int64        // largest number of bytes that may be held for clients
	top  int64        // the memory limit of the process

	percent int   // active GOGC
	limit   int64 // active memory limit
}

// tune sets the targets for the present heap, now and after every collection.
func (c *collection) tune() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(live)
	kept := live[0].Value.Uint64() + live[1].Value.Uint64()
	if percent := gcPercent(kept); differs(int64(percent), int64(c.percent)) {
		debug.SetGCPercent(percent)
		c.percent = percent
	}
	if limit := min(memoryLimit(int64(kept), c.held(), c.most), c.top); differs(limit, c.limit) {
		debug.SetMemoryLimit(limit)
		c.limit = limit
	}
	runtime.SetFinalizer(new([finalized]byte), func(*[finalized]byte) { c.tune() })
}

func differs(target, present int64) bool {
	return math.Abs(float64(target-present)) > float64(present)*minChange/100
}

// gcPercent returns the GOGC for a heap with this many live bytes.
func gcPercent(live uint64) int {
	if live == 0 {
		return maxPercent
	}
	return int(min(max(garbageBytes*100/live, minPercent), maxPercent))
}

// memoryLimit returns the memory limit for a heap with this many live bytes, of which some are held for clients. The
// percentage does not suffice, because it only changes at a collection. A heap that clients grow in between would be
// allowed many times its size.
func memoryLimit(live, held, most int64) int64 {
	own := max(live-held, 0)
	return own + max(own, garbageBytes) - garbageBytes + besidesHeap + most*7/4
}
