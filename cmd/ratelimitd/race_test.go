//go:build race

package main

// raceDetector says that everything takes many times as long.
const raceDetector = true
