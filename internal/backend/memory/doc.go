// Package memory keeps counters in the memory of the process. It is the embedded default, and the store for on_error:
// local.
//
// Store is the store. Its counters are in shards by the hash of their key, and Run sweeps expired counters. A Store may
// be used by any number of goroutines: takes that are settled together hold the locks of their shards, always in the
// same order. Decisions whose counters exist share nothing else.
//
// A counter in use is never dropped: with eviction, anyone could reset a limit by sending enough different values. If
// the store is nearly full and a rule has used up its share of it, new customers of the rule are counted in shared
// counters. These may deny too much, but never allow too much. A take fails with backend.ErrFull only without a shared
// counter for it (Options.Shared). Both cases cost the same however much the store holds: only Run and Sweep look for
// expired counters.
//
// Elapsed time is measured with the monotonic clock, which is never set. Only windows on the clock or on a calendar
// follow the wall clock (backend.Clock).
//
// A counter is a few dozen bytes in a large chunk without pointers (table), and a slot in an index, which has no
// pointers either. So millions of counters cost the garbage collector nothing. The tail of a state needs a pointer in
// Go, so tails are in a separate list; only logs and precise sliding windows have them. A take works on a copy of the
// state and writes it back before it unlocks the shard. The bytes of dropped counters are waste. If more than a quarter
// of a shard is waste, Run, or the next take that adds a counter, copies the remaining counters and frees it.
//
// The reservations of a counter are kept next to it. Each uses the room of a counter, and belongs to the same share.
// Only takes that concern reservations look at them; these takes and Run settle expired ones. A reservation needs a
// counter that is not shared: without room for one, it fails with backend.ErrFull.
//
// The package does no arithmetic (package backend does), and a restart loses all counters.
package memory
