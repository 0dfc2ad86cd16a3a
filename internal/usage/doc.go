// Package usage records which counters are in use, so that all counters of one caller can be listed, and what one counter has let
// pass and refused in each minute of the last hour.
//
// Index keeps, for each domain and entry, the descriptors with this entry that have a live counter. It knows no counts: who
// lists descriptors looks at their counters. Decisions record descriptors (Record); Run writes them to a Store in batches.
// Each process writes a counter at most about once per window. What does not fit the bounds is dropped and counted: then a
// counter is missing in lists until it is used again.
//
// The history of counters is kept in count-min sketches, whose size does not depend on how many counters there are: an answer may be
// too high by a known amount. Decisions count hits in this process (Count); Run adds them to Sketches every ten seconds.
//
// An Index may be used by any number of goroutines. Memory is a Store in this process,
// and MemorySketches are its Sketches; package backend/redis has both for Redis.
package usage
