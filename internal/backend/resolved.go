package backend

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// Resolved is a limit that was found for a descriptor, with the numbers that hold for its caller.
type Resolved struct {
	Counter

	// what operators see: where an override blocks the caller, the rule's limit, under which it still has what it used
	Seen *descriptor.Limit

	// nothing is counted for this caller now: an override lifts the limit, or it does not apply at this time
	Free          bool
	RefundsDenied bool // the domain allows no refunds
}
