// Package lease takes permits of hot counters from the backend in batches. It decides takes of these counters in this
// replica, so that such a decision seldom costs a trip. Rules enable it with lease: true.
//
// Leases is a store in front of another one. It finds out which counters are hot, acquires permits for them in batches
// that follow their use, answers takes from these permits, and forwards the other takes. Unused permits are given back.
//
// Leases may be used by any number of goroutines. A take waits at most once, for an acquisition of its own counter that
// another take began. An acquirer never waits, so there is no deadlock.
//
// It does not keep counts of its own and never denies: denials come from the backend, or from the denial cache behind
// it. It should stand directly in front of that cache, and behind nothing that makes up answers.
//
// A store in another region is leased from ahead of need: far.go.
//
// # Why it never admits too much
//
// A permit is charged in the store before it is used, and it is used only while that charge counts:
//
//   - Fixed and sliding windows, buckets with interval refill: until the end of the window, sub-window or interval that
//     it was charged to. After that the permit is worth nothing.
//   - Buckets with continuous refill: within tau, which is a tenth of the window and at most half a second. What is
//     used in a span of time was charged in a span that is longer by tau. So the bucket is counted with a smaller
//     capacity: it is smaller by what is refilled within tau, which is at most a tenth. A leaky bucket can be leased if
//     nothing waits in it (nodelay: all).
//   - Sliding logs: within tau. Entries stay in the log longer by tau.
//
// All takes of such a rule, including those that lease nothing, are counted under that tightened limit. The counter's
// key does not depend on it. While lease is switched on or off for such a rule, some replicas lease and others do not.
// During that time a burst may exceed the limit by what leases hold.
//
// The lifetime of a permit is measured on the monotonic clock of this replica. It starts when the permit is asked for,
// which is before the store reads its clock. So the clocks of replicas and store need not agree: they only have to run
// equally fast, to one part in a thousand. The caller's time given to Start should come from time.Now, and be no older
// than the request.
//
// An acquisition that fails may have been counted. It is treated as if nothing was granted.
//
// # What is held back
//
// All replicas together hold at most a twentieth of a limit's capacity, if Options.Replicas is right, and at most half
// of what is left of it. Limits below 40 for each replica are not leased. A lease is as large as what this replica uses
// in half of the lease's life. When that life is over, the permits left are dormant: the answer to the next acquisition
// shows how many of them still count (the same window: all; a bucket: all but what was refilled since; a log: none).
// The acquisition asks for that many fewer. So load that comes and goes does not use up a window.
//
// Permits that stay dormant are given back by a refund, but only where the refund is right whenever the store carries
// it out within Options.ReturnWithin (default: a minute). So with the default, nothing is given back within a minute of
// the end of a window; a bucket gets back less, by what it refills in a minute; and a log gets back nothing, because it
// would drop the entries of others. A refund that is carried out in another window would take away hits of that window:
// this happens when a store is stopped for half a minute. Permits that are not given back end with their window. So do
// those that a replica held when it crashed.
//
// # What callers see
//
// Remaining counts unused permits of this replica as unused, and those of other replicas as used: it may be too low by
// a twentieth. The part of a bucket that is held back for tightening counts as used. Denied hits that count
// (count_denied) void permits of this replica, just as they use up what is left in the store; other replicas learn of
// it at their next trip. A refund gives back the unused permits too. A window drops it if it is of more than what is
// used, as without leases. But what other replicas hold counts as used: a refund of more than was ever taken may give
// out that much.
package lease
