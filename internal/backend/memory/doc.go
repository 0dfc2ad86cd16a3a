// Package memory keeps counters in this process: the embedded default, and what on_error: local counts in.
//
// Store is the store. Its counters are in shards by the hash of their key, and Run sweeps the expired ones. A Store may be used
// by any number of goroutines: takes that are settled together hold the locks of their shards, in one order. Decisions whose
// counters exist share nothing else.
//
// A counter that is in use is never dropped: evicting would let anyone who sends enough values reset a limit. A rule that
// has its share of a store that is nearly full counts new callers in shared counters, which refuse too much and never admit
// too much. Only where there are none (Options.Shared) a take fails with backend.ErrFull. Both cost the same whatever the
// store holds: only Run and Sweep look for what has expired.
//
// It does not do arithmetic (package backend) and keeps nothing over a restart.
package memory
