// Package memory keeps counters in this process. It is the embedded default, and the store for on_error: local.
//
// Store is the store. Its counters are in shards by the hash of their key, and Run sweeps expired counters. A Store may be
// used by any number of goroutines: takes that are settled together hold the locks of their shards, always in the same order.
// Decisions whose counters exist share nothing else.
//
// A counter in use is never dropped: with eviction, anyone could reset a limit by sending enough different values. If the
// store is nearly full and a rule has used up its share of it, new callers of the rule are counted in shared counters. These
// may refuse too much, but never admit too much. A take fails with backend.ErrFull only if there is no shared counter for it
// (Options.Shared). Both cases cost the same however much the store holds: only Run and Sweep look for expired counters.
//
// A counter is a few dozen bytes in a large chunk that has no pointers (table), and a slot in an index that is no pointer
// either. So millions of counters cost the garbage collector nothing. What Go cannot keep without a pointer, the tail of a
// state, is in a list of its own; only logs and precise sliding windows have tails. A take works on a copy of the state and
// writes it back before it gives up the lock of the shard. What dropped counters leave behind is waste. If it is more than a
// quarter of a shard, the counters are copied and it is free again: by Run, or before a counter is added.
//
// It does no arithmetic (package backend does) and keeps nothing over a restart.
package memory
