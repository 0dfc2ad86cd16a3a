// Package fleet knows the processes that share a Redis: how many there are, which rules and overrides each of them has, whether it reaches
// Redis, and how much it decides. Leases and on_error: local divide limits by their number. Operators look for the process that is not like the
// others.
//
// A Fleet writes heartbeats, which keep its process on a list in Redis. With each heartbeat it writes what the process says of itself to a
// key that expires. A process that stops takes itself off the list. A process that was killed drops off the list after a while, by Redis'
// clock. A Fleet reads the list and what the other processes say when an operator asks for it. It also reads them now and then without
// being asked, so that there is something to show while Redis is unreachable. Because it remembers which processes were on the list, it
// can tell which of them stopped and which were killed.
//
// Any program with access to Redis may have written what a Fleet reads there. An entry that is too long, or that no process would write, is
// counted and not shown.
//
// All methods may be called by any number of goroutines. The list is written by Options.Beat, because the scripts that count know its form.
package fleet
