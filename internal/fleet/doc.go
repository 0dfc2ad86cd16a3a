// Package fleet knows the processes that share a Redis: which rules and overrides each of them has, whether it reaches Redis, and how
// much it decides. Operators look at it to find the process that is not like the others.
//
// A Fleet writes what its process says of itself to Redis every few seconds, with one script that also removes what others wrote minutes ago.
// It reads what the others wrote when somebody asks for the list, and rarely without being asked, so that there is something to show
// while Redis is away. Redis' clock says when a process was last seen; the clocks of the processes do not matter.
//
// What is in Redis may have been written by anybody who may write there. An entry that is too long, or is not what a process would
// write, is counted and not shown.
//
// All methods may be called by any number of goroutines. No decision depends on this package: how many processes share a limit is counted
// by backend/redis.
package fleet
