package limiter

import (
	"errors"

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

// Errors that Decide returns, wrapped with what is wrong.
var (
	// ErrInvalid is returned for a request that no server could answer; the message names the field.
	ErrInvalid = errors.New("invalid request")
	// ErrNoRules is returned as long as no rules have been loaded at all.
	ErrNoRules = errors.New("no rate limit configuration loaded")
)
