package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	mostGarbage = 128 << 20 // bytes that may pile up before they are collected, unless more is live

	laziest  = 800 // percent of what is live that garbage may be
	keenest  = 100
	noticed  = 10 // percent by which that must change to be set anew, which stops all calls for a moment
	cycleTag = 16 // bytes of what the collector reports a cycle with
)

// collect sets how much garbage may pile up, now and after every collection: eight times what is live while that is
// little, 128 MiB when it is more, and as much as is live when that is more still. present is what is set.
func collect(present int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(live)
	percent := garbage(live[0].Value.Uint64() + live[1].Value.Uint64())
	if math.Abs(float64(percent-present)) > float64(present)*noticed/100 {
		debug.SetGCPercent(percent)
		present = percent
	}
	runtime.SetFinalizer(new([cycleTag]byte), func(*[cycleTag]byte) { collect(present) })
}

// garbage is the percentage of so many live bytes that garbage may be.
func garbage(live uint64) int {
	if live == 0 {
		return laziest
	}
	return int(min(max(mostGarbage*100/live, keenest), laziest))
}
