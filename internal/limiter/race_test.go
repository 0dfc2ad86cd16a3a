//go:build race

package limiter_test

// raceDetector says that pools forget at random: allocations cannot be counted.
const raceDetector = true
