// Package lease takes permits of hot counters from the backend in batches. It then decides takes of these counters in
// this replica, so that few decisions cost a trip. Rules enable it with lease: true.
//
// Leases is a store in front of another store. It detects hot counters, acquires permits for them in batches sized to
// their use, answers takes from these permits, and forwards all other takes. It returns unused permits.
//
// Any number of goroutines may use Leases. A take waits no more than once, for an acquisition of its own counter that
// another take started. An acquirer never waits, so there is no deadlock.
//
// Leases does not count and never denies: denials come from the backend, or from the denial cache behind it. It should
// stand directly in front of that cache, and behind nothing that invents answers.
//
// From a store in another region, permits are leased ahead of need: see far.go.
//
// # Why leases never exceed the limit
//
// A permit is charged in the store before it is used, and it is used only while that charge counts:
//
//   - Fixed and sliding windows, buckets with interval refill: until the end of the window, sub-window or interval that
//     it was charged to. After that the permit is worthless.
//   - Buckets with continuous refill: within tau, which is a tenth of the window and at most half a second. Permits
//     used in a span of time were charged in a span that is longer by tau. So the bucket is counted with a capacity
//     reduced by the refill of one tau, which is at most a tenth. For example, a bucket of 100 that refills 600 a
//     minute has a tau of half a second and counts with 95. A leaky bucket can be leased if nothing waits in it
//     (nodelay: all).
//   - Sliding logs: within tau. Entries stay in the log longer by tau.
//
// All takes under such a rule, including those that lease nothing, are counted under that tightened limit. The
// counter's key does not depend on it. While `lease` is switched on or off for such a rule, some replicas lease and
// others do not. During that time a burst may exceed the limit by the permits in leases.
//
// The lifetime of a permit is measured on the monotonic clock of this replica. It starts when the permit is requested,
// which is before the store reads its clock. So the clocks of replicas and store need not agree: they only have to run
// at the same speed, to one part in a thousand. The time passed to Start should come from time.Now, and be no older
// than the request.
//
// An acquisition that fails may have been counted. It is treated as if nothing was granted.
//
// # Permits that a lease keeps from others
//
// All replicas together hold at most a twentieth of a limit's capacity, if Options.Replicas is right, and at most half
// of its remaining hits. Limits below 40 for each replica are not leased. A lease is as large as this replica's use in
// half of the lease's life. When that life is over, the remaining permits are dormant: the answer to the next
// acquisition shows how many of them still count (the same window: all; a bucket: all except the refill since; a log:
// none). The acquisition asks for that many fewer. So load that comes and goes does not use up a window.
//
// Permits that stay dormant are returned by a refund, but only if the refund is right at any time within
// Options.ReturnWithin (default: a minute). So with the default, nothing is returned in the last minute of a window; a
// bucket gets back less, by its refill in a minute; and a log gets back nothing, because it would drop the entries of
// others. A refund that is carried out in another window would remove hits of that window: this happens when a store is
// stopped for half a minute. Permits that are not returned end with their window. So do permits of a replica that
// crashed.
//
// # Limits as clients see them
//
// Remaining counts unused permits of this replica as unused, and those of other replicas as used: it may be too low by
// a twentieth. The part of a bucket that is withheld for tightening counts as used. Denied hits that count
// (count_denied) void permits of this replica, just as they use up the remaining hits in the store; other replicas
// learn of it at their next trip. A refund returns the unused permits too. As without leases, a window ignores a refund
// larger than its count. But permits that other replicas hold count as used, so a refund of more hits than were ever
// taken may free that many.
package lease
