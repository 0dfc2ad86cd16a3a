// Package lease takes permits of hot counters from the backend in batches and decides on them in this process, so that
// a decision on such a counter seldom costs a trip. Rules ask for it with lease: true.
//
// Leases is a store in front of another one. It finds out which counters are hot, acquires permits for them in batches that
// follow their use, answers takes from these permits, and forwards the other takes. Unused permits are given back.
//
// Leases may be used by any number of goroutines. A take waits at most once, for an acquisition of its own counter that another
// take began. An acquirer never waits, so there is no deadlock.
//
// It does not keep counts of its own and never refuses: refusals are the backend's, or those of the over-limit cache that
// stands behind it. It wants to stand directly in front of that cache, and behind nothing that makes answers up.
//
// # Why it never admits too much
//
// A permit was charged in the store before it is used, and is used while that charge counts:
//
//   - Fixed and sliding windows, buckets with interval refill: until the window, sub-window or interval ends that it was
//     charged to. Later the permit is worth nothing.
//   - Buckets with continuous refill: within tau, a tenth of the window and half a second at most. What is used in a span
//     of time was charged in one that is longer by tau, so the bucket is counted with a capacity smaller by what it refills
//     within tau, a tenth of it at most. A leaky bucket can be leased if nothing waits in it (nodelay: all).
//   - Sliding logs: within tau, and entries stay in the log longer by tau.
//
// All takes of such a rule, also those that lease nothing, are counted under that tightened limit; the counter's key does
// not depend on it. So while lease is switched on or off for such a rule and processes run both, a burst may exceed it
// by what leases hold.
//
// The time that a permit may be used for is measured on this process' monotonic clock, from the moment at which it was
// asked for, which is before the store read its clock: the clocks of processes and store need not agree, only run equally
// fast, to one part in a thousand. The caller's time given to Take should come from time.Now and be no older than the
// request.
//
// An acquisition that fails may have been counted. It is taken for granted nothing.
//
// # What is held back
//
// All processes together hold at most a twentieth of a limit's capacity, if Options.Replicas is right, and no more than
// half of what is left of it; limits below 40 for each process are not leased. A lease is as large as what is used here in
// half of its life. When its life is over, what is left sleeps: the answer to the next acquisition says how much of it
// still counts (the same window: all; a bucket: all but what has been refilled since; a log: nothing), and that much
// fewer are asked for. So load that comes and goes does not use a window up.
//
// Permits that stay asleep are given back by a refund only where that is right whenever the store carries it out within
// Options.ReturnWithin, a minute unless said otherwise: not within a minute of a window's end, less what a bucket refills
// in a minute, and never to a log, which would drop somebody else's entries. A refund that is carried out in another
// window would take away hits of that one; a store that was stopped for half a minute does that. What is not given
// back ends with its window, and what a process held when it crashed does too.
//
// # What callers see
//
// Remaining counts this process' own unused permits as unused, and those of other processes as used: it may be lower by a
// twentieth. The part of a bucket that is held back for tightening counts as used. Refused hits that count (count_denied)
// void this process' permits as they would what is left in the store; other processes learn of it at their next trip.
// A refund gives back the unused permits too. It stops at zero as without leases, but in a counter that other processes
// lease from zero is what they hold: refunds of more than was ever taken may give out so much.
package lease
