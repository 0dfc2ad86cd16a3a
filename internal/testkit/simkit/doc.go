// Package simkit runs a distributed system in virtual time: one seed gives one order of events, byte for byte.
//
// A World has a virtual time and a queue of events; events of one instant run in the order in which they were
// scheduled. A Clock is the clock of one machine: it drifts and can be set. A Network delays, loses, repeats and
// reorders messages, and can be cut in one direction. Reduce finds a short history that still fails.
//
// A test builds its machines from these parts. It must draw everything from World.Rand and must not range over maps. A
// World is used by one goroutine.
//
// It is independent of the simulated system, and checks nothing.
package simkit
