// Package region is the arithmetic of limits that hold across regions. Each region has a Redis of its own, and no Redis replicates
// another one. One region is the home of a counter: its Redis counts. The home grants permits to the other regions, which answer
// their callers from these without asking.
//
// A Counter is what the home's Redis keeps: the state of an ordinary counter, and what it has granted. An Account is what another
// region's Redis keeps: the permits that it holds. A replica of that region makes a Question out of the account, a replica of the
// home turns it into an Answer, and the account takes the answer in. A Role says whether a region may act as the home at all, and
// Known which list of regions (Epoch) a region obeys. A Watch notices that the clock of a Redis was set back.
//
// Every method here is what one script does to one record: a value and a time go in, and the value changes. Nothing here does I/O,
// starts a goroutine or reads a clock. Values are not safe for concurrent use: their Redis runs one script at a time.
//
// # Why it never admits too much
//
// At any time the home's count is at least what all regions have used and can still use:
//
//   - A permit is charged at the home before a region may use it, and is used only while that charge counts.
//   - An account applies an answer only if it waits for this one: same incarnation, same number, same epoch. So a permit is
//     added once, however often messages are repeated.
//   - What was used and returned is reported as totals for each grant, so a report that is repeated or late changes nothing. An
//     account that reports permits as returned no longer has them.
//   - An account has a random incarnation. After its Redis has lost it, the new one starts with nothing, and what the lost one
//     held stays charged.
//   - A grant ends at an absolute time by the clock of the account's Redis. That time is counted from before the question was sent,
//     so the clocks of regions need to run equally fast (to one part in 400), not to show the same time.
//   - A home whose regions do not confirm it gives nothing and admits nothing. A new home starts when nothing of the old one can be
//     valid any more, and its counters start full.
//
// What is lost on the way is lost for the limit, too: permits whose answer never arrives count as used until the next question
// of that account shows that it does not have them.
//
// # What it does not do
//
// It is exact unless a Redis forgets acknowledged writes, as after a failover to a replica that lags. Then the limit may be
// exceeded by what was forgotten. A home that learns of grants which it has forgotten charges them again, and grants nothing for as
// long as a grant lives. If the clock of a region's Redis is set back while no replica is left that has read it before, permits
// last longer by as much as it was set back. If the home's clock jumps, one more window may begin: as without regions.
//
// Leaky buckets in which requests wait, penalties, and places (concurrency) stay at the home. Denied hits count nowhere. The
// package does not choose the home of a counter, and it does not know why a request is denied.
package region
