package limiter

import (
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Request is a request for a decision.
type Request struct {
	Domain      string
	Descriptors []Descriptor

	// Hits is the number of hits that each descriptor without its own number adds. 0 means 1.
	Hits uint32

	Purpose Purpose
	Hold    *Hold // every descriptor is a step of this reservation, and the request is one atomic step; nil: none is
}

// Descriptor is the entries of one thing to be limited, and the caller's settings for it.
type Descriptor struct {
	Entries []descriptor.Entry

	// Hits, if HasHits is set, is the number of hits that this descriptor adds. 0 peeks: it decides and adds nothing.
	Hits    uint64
	HasHits bool

	// Amounts are added to the hits: the cost of the rule says what they are worth.
	Amounts []descriptor.Amount

	// Refund gives the hits back instead of taking them.
	Refund bool

	// Limit, if HasLimit is set, is the limit to use instead of the rule's limits.
	Limit    RequestLimit
	HasLimit bool
}

// RequestLimit is a limit that a request brings along: a number of requests per fixed window on the clock.
type RequestLimit struct {
	Requests   uint32
	Unit       int32  // a descriptor.Unit as received on the wire; an unknown unit makes the request invalid
	Multiplier uint32 // the window's length in units; 0 means 1; a window of more than 90 years makes the request invalid
}

// ErrNoRules is returned until rules have been loaded for the first time.
var ErrNoRules = errors.New("no rate limit configuration loaded")

// InvalidError reports a request that no server could answer. Callers find it with errors.As.
type InvalidError struct {
	Field   string // domain, descriptors[1].limit.unit, ...; empty: the whole request
	Message string // what is wrong, including the field
	Err     error  // the cause, if there is one
}

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (e *InvalidError) Error() string { return "invalid request: " + e.Message }

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }
