//go:build !race

package limiter_test

const raceDetector = false
