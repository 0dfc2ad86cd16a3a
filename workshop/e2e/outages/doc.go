// Package outages tests the service while Redis, or the network before it, fails: Redis is killed, hangs,
// fails over, loses its memory; the network is slow, loses answers, cuts connections.
//
// TestChaos keeps two replicas of the service under load during the failure and compares the hits that they allowed
// with the limits. TestRegions and TestMove do the same with three regions. The other tests ask a store in this
// process. The network is toxiproxy, Redis is redis-server, and the service is the program that is built from the
// sources as they are: nothing here is a double.
//
// The package has only tests. It counts only permits and times. docs/do/redis-failures.md describes an outage as
// clients see it.
package outages
