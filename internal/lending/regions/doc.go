// Package regions counts limits that hold across regions. Store is a store in front of another one. A limit with a home
// is counted by the home's ordinary store, by ordinary takes: with the same keys as a limit without regions. The other
// regions reach it over the network, as replicas reach their Redis. Nothing of the rule language is implemented here.
//
// The part of a request whose counters have one home is one query. The home finds each limit in its own rules, settles
// the takes as one request of its own store, and answers. A query is sent at most once: if its answer is lost, its hits
// stay counted.
//
// In front of each home is a denial cache (package overlimit, Options.Far): a denied counter stays denied here until an
// answer says otherwise.
//
// A limit of mode eventual has no home: each region counts on its own, and lowers its limit by the hits that the others
// report (tally.go).
package regions
