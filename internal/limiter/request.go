package limiter

import (
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Request asks for a decision.
type Request struct {
	Domain      string
	Descriptors []Descriptor

	// Hits is what each descriptor adds that does not say so itself. 0 means 1.
	Hits uint32
}

// Descriptor is the entries of one thing to be limited, and what the caller wants to be different about it.
type Descriptor struct {
	Entries []descriptor.Entry

	// Hits, if HasHits, is what this descriptor adds; 0 peeks: it judges and adds nothing.
	Hits    uint64
	HasHits bool

	// Refund gives the hits back instead of taking them.
	Refund bool

	// Override, if HasOverride, is the limit to use in place of the rule's.
	Override    Override
	HasOverride bool
}

// Override is a limit that a request brings along: so many requests per window, in a fixed window on the clock.
type Override struct {
	Requests   uint32
	Unit       int32  // a descriptor.Unit as it came from the wire; an unknown one makes the request invalid
	Multiplier uint32 // how many units a window is long; 0 means 1, more than 90 years make the request invalid
}

// ErrNoRules is returned as long as no rules have been loaded at all.
var ErrNoRules = errors.New("no rate limit configuration loaded")

// InvalidError reports a request that no server could answer. Callers find it with errors.As.
type InvalidError struct {
	Field   string // domain, descriptors[1].limit.unit, ...; empty: the request as a whole
	Message string // what is wrong, with the field
	Err     error  // the cause, if there is one
}

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (e *InvalidError) Error() string { return "invalid request: " + e.Message }

// Unwrap is the cause.
func (e *InvalidError) Unwrap() error { return e.Err }
