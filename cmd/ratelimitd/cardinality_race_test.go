//go:build race

package main

// underRace says that times mean nothing: the race detector is on.
const underRace = true
