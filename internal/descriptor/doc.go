// Package descriptor holds the vocabulary of a decision and the tree of rules that answers it.
//
// A caller sends Entries. Compile makes a Tree of the specs of rule files, and Domain.Match finds the Rule for a descriptor's
// entries. A Rule has Limits: requests per Window, and the Algorithm that holds them. A row in algorithms says what the limits
// of an algorithm mean; package backend counts. KeyBuilder builds the identity of a counter. Explain says, for people, why a
// rule matches.
//
// A level of the tree finds its child among exact values, lists of them, networks of addresses, wildcards and regular
// expressions. It imports the standard library and, for the networks, bart: a table that takes as long for 100,000 networks as for a
// thousand.
//
// A Tree is immutable once Compile has returned it: any number of goroutines may match against it without a lock.
// Matching allocates nothing. Everything here is a pure function of its arguments; time is one of them.
//
// It does not read files, does not count, and knows neither Redis nor protobuf.
package descriptor
