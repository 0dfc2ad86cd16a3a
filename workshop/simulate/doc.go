// Package simulate runs a fleet of the service in virtual time: several replicas with their limiters, denial caches and leases, one
// store, and a network between them that delays and loses messages. One seed is one history.
//
//	make simulate SEED=7
//
// It has only tests. The real packages run in a bubble of testing/synctest; internal/testkit/simkit has the clocks. An oracle that
// shares no code with the service checks every answer and every interval of every counter. What crosses regions has a simulation
// of its own, in internal/backend/region, and so have Envoy's quota buckets, in internal/quota.
package simulate
