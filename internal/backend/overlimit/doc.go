// Package overlimit keeps refusals in front of another store, so that traffic which is over its limit costs no trip.
//
// A refusal is final until its retry-after, for takes of the same counter under the same limit with as many hits or
// more: usage only falls by a schedule that the refusal knew. It is keyed by counter and limit, because a request may
// override the limit of a counter. A refund or a reset through this process forgets the counter's refusal; one through
// another process is noticed when the refusal ends.
//
// A Cache may be used by any number of goroutines. It is bounded by bytes; when it is full a refusal is forgotten, which
// costs a trip and nothing else. Takes that are settled together are answered from here only if all of them are refused
// here, because the others' counters would have to be read all the same.
package overlimit
