package limiter

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Code is a verdict. Its numbers are the ones of Envoy's protocol.
type Code uint8

// The verdicts. A decision never has CodeUnknown: what cannot be decided is an error.
const (
	CodeUnknown Code = iota
	OK
	OverLimit
)

func (c Code) String() string {
	switch c {
	case OK:
		return "OK"
	case OverLimit:
		return "OVER_LIMIT"
	default:
		return "UNKNOWN"
	}
}

// Decision is the answer to a request.
type Decision struct {
	Code     Code
	Statuses []Status // one per descriptor, in order
	Headers  []Header // to add to the client's response

	// Metadata is the dynamic metadata, nil unless the settings ask for it. Values are string, bool, int, int64, uint64,
	// float64, nil, []any and map[string]any. Its parts may belong to the rules: nobody may write to it.
	Metadata map[string]any
}

// Status is the verdict on one descriptor.
type Status struct {
	Code Code

	// Rule is the rule that decided; nil if none matches, an override stands in for it, or another rule replaced it.
	Rule *descriptor.Rule

	// LimitIndex is the place in Rule.Limits of the limit that the status is about, if there is one.
	LimitIndex int

	// Limited says that a limit applied: CurrentLimit and Reset are set.
	Limited bool
	Limit   CurrentLimit

	Remaining uint32        // hits left; the largest number if the rule is unlimited
	Reset     time.Duration // until the window ends or the limit is full again, in whole seconds, rounded up

	RetryAfter time.Duration // over the limit: until the same request would pass, exactly; negative if never
	Delay      time.Duration // leaky bucket: how long the request is to wait for its turn

	// Degraded says that the backend could not answer and on_error decided: allow, deny or local. Else it is
	// descriptor.OnErrorDefault.
	Degraded descriptor.OnError
}

// CurrentLimit is the limit that a status is about.
type CurrentLimit struct {
	Name     string
	Requests uint32
	Unit     descriptor.Unit // descriptor.UnitUnknown if the window is not one whole unit
}

// Header is one header for the client's response.
type Header struct {
	Key   string
	Value string
}
