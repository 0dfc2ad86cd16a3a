// Package simulate runs a fleet of the service in virtual time: several replicas with their limiters, denial caches and
// leases, in one to three regions, and networks between them that delay and lose messages. One seed is one history.
//
//	make simulate SEED=7
//
// It has only tests. The real packages run in a bubble of testing/synctest; internal/testkit/simkit has the clocks. An
// oracle that shares no code with the service checks every answer and every interval of every counter. Where regions
// share a limit, it also checks that a request does not wait for the home when its answer is known.
package simulate
