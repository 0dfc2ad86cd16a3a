package backend

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// Resolved is a limit that was found for a descriptor, with the numbers for its customer.
type Resolved struct {
	Counter

	// limit to show to operators. Where an override blocks the customer, this is the rule's limit, with the hits that the
	// customer has used under it
	Seen *descriptor.Limit

	// nothing is counted for this customer now: an override lifts the limit, or the limit is not active at this time
	Free          bool
	RefundsDenied bool // the domain allows no refunds
}
