// Package memory keeps counters in this process: the embedded default, and what on_error: local counts in.
//
// It owns the sharded store (store.go, reset.go), its bound and the sweeping of expired counters (sweep.go). A Store may be used
// by any number of goroutines: the takes that are settled together hold the locks of their shards, in one order, and
// nothing else is shared on the way of a decision.
//
// A counter that is in use is never dropped: when the bound is reached and nothing has expired, a take that needs a new
// counter fails with backend.ErrFull. Evicting instead would let anyone who sends enough values reset a limit.
//
// It does not do arithmetic (package backend) and keeps nothing over a restart.
package memory
