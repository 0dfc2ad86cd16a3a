// Package descriptor defines descriptors, limits and rules, and the tree that finds the rule for a descriptor.
//
// A client sends Entries. Compile builds a Tree from the specs of rule files, and Domain.Match finds the Rule for a
// descriptor's entries. A Rule has Limits: requests per Window, and the Algorithm that enforces them. The table
// algorithms defines the meaning of each algorithm's limits; package backend counts the hits. KeyBuilder builds the key
// of a counter. Domain.Explain describes for people why a rule matches.
//
// A level of the tree finds its child among exact values, lists of values, networks, wildcards and regular expressions.
// The package imports the standard library and bart, a table for networks. A lookup in bart takes as long with 100,000
// networks as with a thousand.
//
// A Tree is immutable once Compile has returned it: any number of goroutines may match against it without a lock.
// Matching allocates nothing. All functions here are pure; the time is an argument.
//
// The package does not read files, does not count, and depends on neither Redis nor protobuf.
package descriptor
