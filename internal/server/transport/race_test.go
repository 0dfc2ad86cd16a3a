//go:build race

package transport

// raceDetector reports whether the race detector is on. Pools then drop entries at random, so allocations cannot be counted.
const raceDetector = true
