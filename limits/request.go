package limits

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Request asks whether something may be done.
type Request struct {
	Domain      string       // domain of the rules
	Descriptors []Descriptor // one or more; the request passes if all of them have room

	// Amount is used by each descriptor that has no Amount.
	Amount Amount

	// MaxDelay is the longest delay that you accept. A request that a leaky bucket would delay for longer is denied,
	// counts nothing, and its decision has the Delay that it would have had. 0 accepts any delay. Only package ratelimit
	// supports it; Allow and Wait set it from the deadline of their context.
	MaxDelay time.Duration

	unpaired string // a key that NewRequest got without a value
}

// Validate returns an ErrInvalid if NewRequest was called with a key without a value. Deciders call it.
func (r *Request) Validate() error {
	if r.unpaired == "" {
		return nil
	}
	return fmt.Errorf("%w: the key %q has no value: keys and values must come in pairs", ErrInvalid, r.unpaired)
}

// until returns the request with the time until the deadline of ctx as the longest delay, unless it has one.
func (r *Request) until(ctx context.Context) *Request {
	deadline, ok := ctx.Deadline()
	if !ok || r == nil || r.MaxDelay != 0 {
		return r
	}
	bounded := *r
	bounded.MaxDelay = max(time.Until(deadline), 1)
	return &bounded
}

// Descriptor is one thing that is limited.
type Descriptor struct {
	Entries []Entry // one entry for each level of the rule, in this order
	Amount  *Amount // nil for the amount of the request
}

// Entry is one pair of key and value of a descriptor.
type Entry struct {
	Key   string // key as in the rule file
	Value string // may be empty
}

// Amount is how much a request uses of a limit. The zero value is one hit.
type Amount struct {
	// Hits is a number of hits. 0 means 1 hit, unless there are Units or Peek is set.
	Hits uint64
	// Units are numbers of units by kind, such as tokens by "input" and "output". The cost of the rule turns them into
	// hits. Hits and Units are added.
	Units map[string]uint64
	// Peek reads the limit and counts nothing. Remaining of the status shows the remaining hits. A peek is allowed even if
	// no hits remain.
	Peek bool
}

// OrOneHit returns the amount with the default filled in: one hit for the zero value, and nothing for a peek.
func (a *Amount) OrOneHit() Amount {
	switch {
	case a.Peek:
		return Amount{Peek: true}
	case a.Hits == 0 && len(a.Units) == 0:
		return Amount{Hits: 1}
	default:
		return *a
	}
}

// NewRequest returns a request with one descriptor, from pairs of key and value: NewRequest("api", "customer", "42",
// "path", "/search"). If a key lacks its value, the request is invalid, and deciders return ErrInvalid.
func NewRequest(domain string, pairs ...string) *Request {
	r := new(struct { // one allocation for all, if the pairs are few
		Request
		descriptor [1]Descriptor
		entries    [2]Entry
	})
	if len(pairs)%2 != 0 {
		last := len(pairs) - 1
		r.unpaired, pairs = cmp.Or(pairs[last], "(empty)"), pairs[:last]
	}
	entries := slices.Grow(r.entries[:0], len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		entries = append(entries, Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	r.Domain = domain
	r.descriptor[0].Entries = entries
	r.Descriptors = r.descriptor[:]
	return &r.Request
}
