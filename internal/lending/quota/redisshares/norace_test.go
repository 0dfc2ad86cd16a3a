//go:build !race

package redisshares_test

const raceDetector = false
