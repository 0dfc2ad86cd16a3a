//go:build race

package redisshares_test

// raceDetector reports whether the race detector is on. Everything takes many times as long then.
const raceDetector = true
