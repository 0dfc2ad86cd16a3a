// Package outages shows what the service does while Redis, or the network before it, fails: Redis is killed, hangs,
// fails over, loses its memory; the network is slow, loses answers, cuts connections.
//
// TestChaos keeps two replicas of the service under load meanwhile and compares what they admitted with what the limits
// allow. TestRegions and TestMove do the same with three regions. The other tests ask a store in this process. The
// network is toxiproxy, Redis is redis-server, and the service is the program that is built from the sources as they
// are: nothing here is a double.
//
// The package has only tests. It counts only permits and times: what callers see of an outage is in
// docs/do/redis-failures.md.
package outages
