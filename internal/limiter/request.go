package limiter

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// The default bounds of a request. The code that makes a request keeps them: a Limiter decides requests of any size.
const (
	MaxDescriptors = 256
	MaxEntries     = 256      // entries per descriptor
	MaxTextBytes   = 64 << 10 // bytes per domain, key or value; more than Envoy allows for all headers together
)

// Request is a request for a decision.
type Request struct {
	Domain      string
	Descriptors []Descriptor

	// Hits is the number of hits for each descriptor that does not set a number. 0 means 1.
	Hits uint32

	Purpose Purpose
	// the reservation that every descriptor operates on, which makes the request one atomic step; nil without one
	Reservation *Reservation
}

// Descriptor is the entries of one thing to be limited, and the client's settings for it.
type Descriptor struct {
	Entries []descriptor.Entry

	// Hits, if HasHits is set, is the number of hits that this descriptor adds. 0 peeks: it decides and adds nothing.
	Hits    uint64
	HasHits bool

	// Amounts are priced by the cost of the rule and added to the hits.
	Amounts []descriptor.Amount

	// Refund gives the hits back instead of taking them.
	Refund bool

	// Limit, if HasLimit is set, is the limit to use instead of the rule's limits.
	Limit    RequestLimit
	HasLimit bool

	// Numbers replace those of the rule's only limit, as an override does and instead of one. The rule must be
	// overridable. Nil: none are.
	Numbers *override.Numbers
}

// Purpose tells how a request uses the counters.
type Purpose uint8

// The purposes.
const (
	Count Purpose = iota // its hits are counted
	Look                 // nothing is counted; the answer tells how a request would be decided

	Settled // its hits have passed already: they are counted whether or not they fit
)

// Reservation makes a request, or one of its descriptors, an operation on a reservation.
type Reservation struct {
	Op backend.ReservationOp

	// ID identifies the reservation among all reservations of a counter. The ID of a request is varied for each of its
	// descriptors, so that two descriptors that share a counter do not share a reservation.
	ID backend.ReservationID

	TTL   time.Duration // reserve, extend: lifetime of the reservation; 0 means the rule's
	Least uint64        // reserve: smallest number of hits a descriptor accepts if not all fit; 0 means all or nothing
	Final bool          // commit: the reservation ends

	// Unready is why no reservation can be made now. A request that the rules allow fails with it. Nil: it can.
	Unready error

	// ChargeUnknown charges the hits of a commit for which nothing is reserved, whether or not they fit.
	ChargeUnknown bool
}

// ReservationID identifies a reservation.
type ReservationID = backend.ReservationID

// ReservationOp is the kind of an operation on a reservation.
type ReservationOp = backend.ReservationOp

// ReservationResult is the result of an operation on a reservation.
type ReservationResult = backend.ReservationResult

// The operations, and the result of a successful one.
const (
	Reserve         = backend.OpReserve
	Commit          = backend.OpCommit
	Extend          = backend.OpExtend
	ReservationDone = backend.ReservationDone
)

// RequestLimit is a limit that a request carries: a number of requests per fixed window on the clock.
type RequestLimit struct {
	Requests   uint32
	Unit       int32  // a descriptor.Unit as received on the wire; an unknown unit makes the request invalid
	Multiplier uint32 // the window's length in units; 0 means 1; a window of more than 90 years makes the request invalid
}

// ErrNoRules is returned until rules have been loaded for the first time.
var ErrNoRules = errors.New("no rate limit configuration loaded")

// InvalidError reports a request that no server could answer. Use errors.As to find it.
type InvalidError struct {
	Field   string // domain, descriptors[1].limit.unit, ...; empty for the whole request
	Message string // the error text, including the field
	Err     error  // the cause, if there is one
}

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (e *InvalidError) Error() string { return "invalid request: " + e.Message }

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

// NotReservableError reports a descriptor whose rule allows no reservations.
type NotReservableError struct {
	Descriptor int    // its index
	Rule       string // empty for a limit that the request carries
}

// Error implements error.
func (e *NotReservableError) Error() string {
	if e.Rule == "" {
		return fmt.Sprintf("descriptors[%d]: hits of a limit that a request brings along cannot be reserved", e.Descriptor)
	}
	return fmt.Sprintf("descriptors[%d]: the rule %s allows no reservations: set reservations in the rule", e.Descriptor,
		e.Rule)
}

// longestWindow is the longest window of a request's limit. Rules have the same maximum.
const longestWindow = 90 * 365 * 24 * time.Hour

func validate(req *Request) error {
	if req.Domain == "" {
		return invalid("domain", "rate limit domain must not be empty")
	}
	if len(req.Descriptors) == 0 {
		return invalid("descriptors", "rate limit descriptor list must not be empty")
	}
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		if !d.HasLimit {
			continue
		}
		if d.Limit.Unit < 0 || d.Limit.Unit > math.MaxUint8 || !descriptor.Unit(d.Limit.Unit).OnWire() {
			field := fmt.Sprintf("descriptors[%d].limit.unit", i)
			return invalid(field, "%s is %d, which is not a unit of time: use SECOND (1) to WEEK (7)", field, d.Limit.Unit)
		}
		if int64(d.Limit.Multiplier) > int64(longestWindow/descriptor.Unit(d.Limit.Unit).Length()) {
			field := fmt.Sprintf("descriptors[%d].limit.unit_multiplier", i)
			return invalid(field, "%s is %d, which makes a window of more than 90 years", field, d.Limit.Multiplier)
		}
	}
	return nil
}

// hits returns the number of hits that a descriptor adds: the descriptor's number, else the request's, else 1. Very
// large numbers are clamped, so that no sum of them overflows.
func hits(req *Request, d *Descriptor) int64 {
	n := int64(max(req.Hits, 1))
	if d.HasHits {
		n = int64(min(d.Hits, backend.MaxHits))
	}
	if d.Refund {
		return -n
	}
	return n
}

// SettledRequest returns a request that counts hits of one descriptor that have passed already, whether or not they
// fit.
func SettledRequest(domain string, entries []descriptor.Entry, hits uint64) *Request {
	reservation := &Reservation{Op: Commit, Final: true, ChargeUnknown: true}
	_, _ = rand.Read(reservation.ID[:]) // it never fails
	return &Request{
		Domain:      domain,
		Descriptors: []Descriptor{{Entries: entries, Hits: hits, HasHits: true}},
		Purpose:     Settled,
		Reservation: reservation,
	}
}
