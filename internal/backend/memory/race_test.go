//go:build race

package memory

// raceDetector reports whether the race detector is on. Pools then drop entries at random, so allocations cannot be
// counted.
const raceDetector = true
