package backend

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// Resolved is a limit that was found for a descriptor, with the numbers that hold for its caller.
type Resolved struct {
	Counter

	Seen *descriptor.Limit // what operators see: where an override blocks the caller, the rule's limit, under which it still has what it used

	Free          bool // nothing is counted for this caller now: an override lifts the limit, or it does not apply at this time
	RefundsDenied bool // the domain allows no refunds
}
