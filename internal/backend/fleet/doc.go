// Package fleet lists the replicas that share a Redis: how many there are, which rules and overrides each of them has,
// whether it reaches Redis, and how much it decides. Leases and on_error: local divide limits by their number.
// Operators look for the replica that differs from the others.
//
// A Fleet writes heartbeats, which keep its replica on a list in Redis. With each heartbeat it writes its replica's
// status record to a key that expires. A replica that stops removes itself from the list. A replica that was killed
// drops off the list after a while, by Redis' clock. A Fleet reads the list and the records of the other replicas when
// an operator asks for it. It also reads them now and then without being asked, so that there is something to show
// while Redis is unreachable. Because it remembers which replicas were on the list, it can tell which of them stopped
// and which were killed.
//
// Any program with access to Redis may have written the keys that a Fleet reads. An entry that is too long, or that a
// replica would not write, is counted and not shown.
//
// All methods may be called by any number of goroutines. The list is written by Options.Beat, because its form belongs
// to the script that counts the replicas.
package fleet
