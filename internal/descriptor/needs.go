package descriptor

import "slices"

// Needs is a set of what a decision under a rule needs besides counting hits and denying them. Most rules need nothing,
// and cost nothing there. The low byte is for rules; package limiter adds its own bits above it.
type Needs uint16

// What rules need.
const (
	NeedsActive  Needs = 1 << iota // a limit applies only at some times
	NeedsReplace                   // limits of other rules do not apply
	NeedsGroup                     // several values of an entry count as one
	NeedsCost                      // a hit counts for more than one
	NeedsScale                     // an entry multiplies a limit
	NeedsVary                      // a limit is not enforced for all callers, or warns
	NeedsClass                     // a limit is shared by classes of callers
)

// needs returns what decisions under a rule need.
func (r *Rule) needs() (n Needs) {
	add := func(bit Needs, set bool) {
		if set {
			n |= bit
		}
	}
	add(NeedsActive, r.Scheduled())
	add(NeedsReplace, len(r.Replaces) > 0)
	add(NeedsGroup, r.Grouped())
	add(NeedsCost, r.HitCost() != nil)
	add(NeedsScale, r.Scales() != nil)
	add(NeedsVary, slices.ContainsFunc(r.Limits, func(l Limit) bool { return l.Varies() }))
	add(NeedsClass, r.ByEntry != nil && r.ByEntry.Classes != nil)
	return n
}
