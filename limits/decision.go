package limits

import (
	"context"
	"math"
	"time"
)

// Decision is the answer to a request.
type Decision struct {
	// Allowed reports whether the request may pass.
	Allowed bool

	// Delay is how long a request that is allowed must wait for its turn before it proceeds. Only leaky buckets delay
	// requests.
	Delay time.Duration

	// RetryAfter is the time until the same request would be allowed, if it is not. Never: it can never pass, because the
	// limit is smaller than the request. It is 0, which is unknown, if Source is FailClosed.
	RetryAfter time.Duration

	// NextAfter is the time until another hit fits, after a request that is allowed and has taken the last one. 0 if one
	// fits already, or if it is unknown, as from package client.
	NextAfter time.Duration

	// Statuses are the verdicts on the descriptors, in the order of the request. It is empty if Source is FailOpen or
	// FailClosed.
	Statuses []Status

	// Headers are the headers for the client, according to the rules.
	Headers []Header

	// Source is the origin of the answer.
	Source Source

	// Err is why the service did not answer, if Source is FailOpen or FailClosed.
	Err error
}

// NewDecision returns the decision that has these statuses. Its RetryAfter and its Source follow from them. It is for
// code that implements a Decider.
func NewDecision(allowed bool, statuses []Status) Decision {
	d := Decision{Allowed: allowed, Statuses: statuses}
	for i := range statuses {
		s := &statuses[i]
		if s.Degraded {
			d.Source = OnError
		}
		if !allowed && !s.Allowed {
			d.RetryAfter = max(d.RetryAfter, s.RetryAfter) // the request has to wait for the last of its descriptors
		}
	}
	return d
}

// Never is the RetryAfter of a request that can never pass: 292 years.
const Never time.Duration = math.MaxInt64

// Status is the verdict on one descriptor.
type Status struct {
	Allowed bool
	// the rule that applies: its domain, keys and values with dots between them; empty if no rule matches
	Rule       string
	Limit      uint64        // requests per window; 0 without a limit
	Remaining  uint64        // remaining hits
	ResetAfter time.Duration // time until the window ends, or until nothing is in use any more; whole seconds, rounded up
	RetryAfter time.Duration // time until the same request would pass, if it does not now; Never if it can never pass
	Degraded   bool          // the store of the counters did not answer, and on_error of the rule decided
	Penalty    bool          // a penalty of the limit is active, or has just started
}

// Header is one header.
type Header struct {
	Name  string
	Value string
}

// Source is the basis of an answer.
type Source uint8

// The sources.
const (
	Counted     Source = iota // the counters were asked
	OnError                   // the store of the counters did not answer, and on_error of a rule decided
	DenialCache               // the client remembered that the counter is exhausted
	FailOpen                  // the service did not answer, and the client lets requests pass then
	FailClosed                // the service did not answer, and the client denies requests then
)

// Sources is the number of sources, for arrays by source such as client.Stats.Decisions.
const Sources = int(FailClosed) + 1

// MarshalText encodes the name, for logs and JSON.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Source) String() string {
	switch s {
	case Counted:
		return "counted"
	case OnError:
		return "on_error"
	case DenialCache:
		return "denial_cache"
	case FailOpen:
		return "fail_open"
	case FailClosed:
		return "fail_closed"
	default:
		return "unknown"
	}
}

// Decider decides requests. A ratelimit.Limiter and a client.Client are deciders. An error means that the request was
// not decided.
type Decider interface {
	Decide(ctx context.Context, r *Request) (Decision, error)
}
