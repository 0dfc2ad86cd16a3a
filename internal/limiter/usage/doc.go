// Package usage records which counters are in use, so that all counters of one customer can be listed.
//
// Index keeps, for each domain and entry, the descriptors with this entry that have a live counter. It stores no
// counts: after listing descriptors, read their counters. Decisions record descriptors (Record); Run writes them to a
// Store in batches. Each replica writes a counter at most about once per window. Descriptors that exceed the bounds are
// dropped and counted: the counter is then missing in lists until it is used again.
//
// An Index may be used by any number of goroutines. Memory keeps a Store in the memory of one replica; package
// backend/redis keeps one in Redis.
package usage
