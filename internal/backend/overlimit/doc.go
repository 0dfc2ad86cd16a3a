// Package overlimit keeps denials in front of another store, so that traffic over its limit costs no trip.
//
// A denial is final until its retry-after, for takes of the same counter under the same limit with as many hits or
// more: usage only falls by a schedule, and the denial took this schedule into account. It is kept for a counter and a
// limit, because a request may bring its own limit for a counter. A refund or a reset through this replica removes the
// denial of the counter. A refund or reset through another replica takes effect when the denial ends, or when Forget is
// called.
//
// A Cache may be used by any number of goroutines. Its size in bytes is bounded. When it is full, it evicts a denial,
// which costs only a trip. Takes that are settled together are answered from the cache only if it denies all of them.
// Otherwise the counters of the others have to be read anyway.
package overlimit
