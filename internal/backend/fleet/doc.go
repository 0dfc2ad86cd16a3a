// Package fleet knows the processes that share a Redis: how many there are, which rules and overrides each of them has, whether it reaches
// Redis, and how much it decides. Leases and on_error: local divide limits by their number. Operators look for the process that is not like the
// others.
//
// A Fleet writes heartbeats, with which its process is on a list in Redis, and beside each of them what the process says of itself, in a key that
// expires. A process that stops takes itself off the list; one that was killed is off the list after a while, by Redis' clock. A Fleet reads the
// list and what the others say when somebody asks for it, and rarely without being asked, so that there is something to show while Redis is
// unreachable. Because it remembers who was on the list, it can tell who has stopped and who was killed.
//
// What is in Redis may have been written by anybody who may write there. An entry that is too long, or is not what a process would
// write, is counted and not shown.
//
// All methods may be called by any number of goroutines. The list is written by Options.Beat, because the scripts that count know its form.
package fleet
