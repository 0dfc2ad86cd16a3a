// Package fleet knows the replicas that share a Redis: how many there are, which rules and overrides each of them has,
// whether it reaches Redis, and how much it decides. Leases and on_error: local divide limits by their number.
// Operators look for the replica that differs from the others.
//
// A Fleet writes heartbeats, which keep its replica on a list in Redis. With each heartbeat it writes what the replica
// says of itself to a key that expires. A replica that stops takes itself off the list. A replica that was killed drops
// off the list after a while, by Redis' clock. A Fleet reads the list and what the other replicas say when an operator
// asks for it. It also reads them now and then without being asked, so that there is something to show while Redis is
// unreachable. Because it remembers which replicas were on the list, it can tell which of them stopped and which were
// killed.
//
// Any program with access to Redis may have written what a Fleet reads there. An entry that is too long, or that no
// replica would write, is counted and not shown.
//
// All methods may be called by any number of goroutines. The list is written by Options.Beat, because the scripts that
// count know its form.
package fleet
