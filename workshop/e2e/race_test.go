//go:build race

package e2e

// raceDetector reports whether the race detector is on. Everything takes many times as long then.
const raceDetector = true
