// Package regions counts limits that hold across regions. Store stands in front of another store. A limit with a home
// is counted by the home's ordinary store, by ordinary takes, under the same keys as a limit without regions. The other
// regions reach it over the network, as replicas reach their Redis. Nothing of the rule language is implemented here.
//
// The takes of a request whose counters have the same home become one query. The home finds each limit in its own
// rules, settles the takes as one request of its store, and answers. A query is sent no more than once: if its answer
// is lost, its hits stay counted.
//
// In front of each home is a denial cache (package overlimit, Options.Far): a denied counter stays denied here until an
// answer says otherwise.
//
// A limit of mode eventual has no home: each region counts on its own, and lowers its limit by the hits that the others
// report (tally.go).
package regions
