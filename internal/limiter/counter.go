package limiter

import (
	"fmt"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Counters are the counters of one descriptor, for operators.
type Counters struct {
	// Explanation shows which rule the descriptor matches, or why none does. FromRequest: the only limit is the request's,
	// not the rule's.
	Explanation descriptor.Explanation
	FromRequest bool
	Blocked     bool // an override denies every request
	// active for all limits of the rule, or for its first one with an override; nil without one
	Override *override.Numbers

	HitCost uint64 // cost of one hit under the rule; 0 without a rule

	Shadow  bool               // nothing is enforced: the rule or the server is in shadow mode
	OnError descriptor.OnError // how a request is answered while the store cannot answer

	List []Counter // counters in the order of the rule's limits; empty if nothing limits the descriptor
}

// Denies reports whether a counter of the list denies the next request of one hit.
func (c *Counters) Denies(k *Counter) bool {
	return !c.Shadow && (c.Blocked || !k.Lifted && !k.Unenforced && !k.Inactive && k.Wait != 0)
}

// Counter is one limit and its state, as a request to this replica would see it.
type Counter struct {
	Limit descriptor.Limit
	Key   string

	Scale  *descriptor.Scale  // the factor that was applied to Limit; nil if it was not scaled
	Active *descriptor.Active // when the limit applies; nil means always
	// the classes that share the limit, Limit.Classes being the customer's; nil without classes
	Classes  *descriptor.Classes
	Inactive bool // the limit does not apply at the time of the request

	Lifted     bool          // an override lets every request pass this limit
	Unenforced bool          // the limit is not enforced for this customer: hits over it pass
	Kept       int64         // hits reserved for other classes now
	Used       int64         // hits; more than the capacity where denied hits were counted
	Penalty    time.Duration // remaining time of the limit's penalty, which denies everything; 0 without an active penalty
	Remaining  uint64
	Wait       time.Duration // time until a request of one hit would pass; backend.Never if none ever will
	Reset      time.Duration // time until no hits are in use, or until the window ends
	Cached     bool          // the state comes from the denial cache, not from the backend
}

// Words describes the limit for people, with the time when it applies.
func (c *Counter) Words() string {
	words := c.Limit.Words()
	if c.Limit.FromRequest {
		words += ", of the request"
	}
	if c.Scale != nil {
		words += ", by the number of " + strconv.Quote(c.Scale.Key) + fmt.Sprintf(", which counts up to %d", c.Scale.Max)
	}
	if c.Classes != nil {
		words += ", " + c.Classes.Words()
	}
	if c.Active != nil {
		words += ", only " + c.Active.Words()
	}
	switch {
	case c.Inactive:
		words += " (not now)"
	case c.Active != nil:
		words += " (now)"
	}
	return words
}

// Class returns the customer's class, "*" if its value has none, or "" if the limit has no classes.
func (c *Counter) Class() string {
	if c.Classes == nil || c.Limit.Algorithm != descriptor.SharedWindow {
		return ""
	}
	return c.Classes.Name(c.Limit.Classes.Class)
}

// QuotaBucket describes the limits of a descriptor whose requests the client decides itself.
type QuotaBucket struct {
	Counters

	Rule   *descriptor.Rule // nil if no rule matches
	Domain *descriptor.Domain

	// Enforced lists the counters that limit requests now: those in List that no shadow mode, override or schedule takes
	// out of effect. Empty: every request passes, unless Blocked.
	Enforced []*Counter

	// Key is the same for all buckets that share one of the counters in List, even if each also uses others. Empty: no
	// limit has a rate.
	Key string
}

// ClosedFor returns for how long a counter lets nothing pass, although its limit has a rate: a penalty is active, or
// its window is used up and ends only after the client's next usage report.
func (c *Counter) ClosedFor(report time.Duration) time.Duration {
	switch {
	case c.Penalty > 0:
		return c.Penalty
	case c.Limit.Window.Length() < 3*report || c.Remaining > 0 || c.Wait < report:
		return 0
	default:
		return c.Wait
	}
}
