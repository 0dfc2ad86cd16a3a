// Package memory keeps counters in the memory of the process. It is the embedded default, and the store for on_error:
// local.
//
// Store is the store. Its counters are in shards by the hash of their key, and Run sweeps expired counters. A Store may
// be used by any number of goroutines: takes that are settled together hold the locks of their shards, always in the
// same order. Decisions whose counters exist share nothing else.
//
// A counter in use is never dropped: with eviction, anyone could reset a limit by sending enough different values. If
// the store is nearly full and a rule has used up its share of it, new callers of the rule are counted in shared
// counters. These may deny too much, but never admit too much. A take fails with backend.ErrFull only if there is no
// shared counter for it (Options.Shared). Both cases cost the same however much the store holds: only Run and Sweep
// look for expired counters.
//
// Time that has passed is measured with the monotonic clock, which is never set. Only windows on the clock or on a
// calendar follow the wall clock (backend.Clock).
//
// A counter is a few dozen bytes in a large chunk that has no pointers (table), and a slot in an index that is no
// pointer either. So millions of counters cost the garbage collector nothing. What Go cannot keep without a pointer,
// the tail of a state, is in a list of its own; only logs and precise sliding windows have tails. A take works on a
// copy of the state and writes it back before it gives up the lock of the shard. What dropped counters leave behind is
// waste. If it is more than a quarter of a shard, the counters are copied and it is free again: by Run, or before a
// counter is added.
//
// The reservations of a counter are kept next to it. Each takes up the place of a counter, and belongs to the same
// share. Only takes that concern reservations look at them; they and Run deal with those that have expired. A
// reservation needs a counter of its own: without room for one, it fails with backend.ErrFull.
//
// It does no arithmetic (package backend does) and keeps nothing over a restart.
package memory
