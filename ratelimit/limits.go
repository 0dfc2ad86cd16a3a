package ratelimit

import "github.com/ratelimitd/ratelimitd/limits"

// The types of package limits, so that one import is enough.
type (
	// Observer sees decisions.
	Observer = limits.Observer
	// Request asks whether hits under some descriptors may pass.
	Request = limits.Request
	// Descriptor is one thing that is limited.
	Descriptor = limits.Descriptor
	// Entry is one pair of key and value.
	Entry = limits.Entry
	// Amount is the number of hits or units that a request uses.
	Amount = limits.Amount
	// Decision is the answer.
	Decision = limits.Decision
	// Status is the answer for one descriptor.
	Status = limits.Status
	// Source is the basis of an answer.
	Source = limits.Source
	// Header is one header for the client.
	Header = limits.Header
	// Reservation is hits that are set aside.
	Reservation = limits.Reservation
	// ReserveOptions are the settings of a reservation.
	ReserveOptions = limits.ReserveOptions
	// OnFailure is what happens to a request when its limits cannot be checked.
	OnFailure = limits.OnFailure
	// ConcurrencyError is the error of a request whose place nobody could give back.
	ConcurrencyError = limits.ConcurrencyError
)

// The answers to a failure of Redis.
const (
	OnFailureDefault = limits.OnFailureDefault // the default of the option
	OnFailureAllow   = limits.OnFailureAllow   // the request passes
	OnFailureDeny    = limits.OnFailureDeny    // the request is denied
	OnFailureError   = limits.OnFailureError   // the request gets an error instead of a decision
	OnFailureLocal   = limits.OnFailureLocal   // this process counts instead of Redis
)

// The bases of an answer.
const (
	Counted = limits.Counted // the counters were asked
	OnError = limits.OnError // Redis did not answer, and on_error of a rule decided
)

// Never is the RetryAfter of a request that can never pass.
const Never = limits.Never

// The errors of package limits.
var (
	ErrInvalid            = limits.ErrInvalid
	ErrClosed             = limits.ErrClosed
	ErrNever              = limits.ErrNever
	ErrTooLong            = limits.ErrTooLong
	ErrUnknownReservation = limits.ErrUnknownReservation
)

// NewRequest returns a request with one descriptor, from pairs of key and value: see limits.NewRequest.
func NewRequest(domain string, pairs ...string) *Request { return limits.NewRequest(domain, pairs...) }
