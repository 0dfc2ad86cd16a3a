// Package descriptor holds the vocabulary of a decision and the tree of rules that answers it.
//
// It owns the words that every other package shares: entries and units (entry.go, unit.go), the window of time that a
// limit counts in (window.go), limits, their arithmetic and rules (limit.go, arithmetic.go, rule.go), what a domain may
// choose (domain.go, on_error.go), and the identity of a counter (key.go). The compiled tree is tree.go; how a level
// finds its child is match.go, over exact values and lists of them (edges.go), networks of addresses (networks.go,
// address.go), wildcards and regular expressions (pattern.go, wildcard.go, automaton.go); why it does, for people, is explain.go. It
// imports the standard library and, for the networks, bart: a table that takes as long for 100,000 networks as for a
// thousand.
//
// A Tree is immutable once Compile has returned it: any number of goroutines may match against it without a lock.
// Matching allocates nothing. Everything here is a pure function of its arguments; time is one of them.
//
// It does not read files, does not count, and knows neither Redis nor protobuf.
package descriptor
