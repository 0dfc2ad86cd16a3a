package descriptor

import "slices"

// Needs is a set of features that a decision under a rule needs in addition to counting hits and denying them. Most
// rules need none of them, and do not pay for them. The low byte is for rules; package limiter adds its own bits above
// it.
type Needs uint16

// Features that rules need.
const (
	NeedsActive  Needs = 1 << iota // a limit applies only at some times
	NeedsReplace                   // limits of other rules do not apply
	NeedsGroup                     // several values of an entry count as one
	NeedsCost                      // a hit counts for more than one
	NeedsScale                     // an entry multiplies a limit
	NeedsVary                      // a limit is not enforced for all customers, or warns
	NeedsClass                     // a limit is shared by classes of customers
)

// needs returns the features that decisions under a rule need.
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
