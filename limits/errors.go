package limits

import (
	"errors"
	"fmt"
)

var (
	// ErrInvalid is the error of a request that cannot be decided, such as one without a domain. Repeating it does
	// not help.
	ErrInvalid = errors.New("invalid request")
	// ErrClosed is the error of every call of a limiter after its Close.
	ErrClosed = errors.New("the limiter is closed")
	// ErrUnknownReservation is the error of a reservation that has been committed or cancelled, or that expired.
	ErrUnknownReservation = errors.New("the reservation is not known: it has been committed or cancelled, or it expired")
)

// ConcurrencyError is the error of a request that would take a place of a limit of requests at the same time: Decide,
// Allow and Wait could not give it back. It is an ErrInvalid.
type ConcurrencyError struct {
	Descriptors []int // the indices of those with such a limit
}

// Error implements error.
func (e *ConcurrencyError) Error() string {
	return fmt.Sprintf("%v: descriptor %d is under a limit of requests at the same time: call Acquire, or Reserve and "+
		"Cancel, which give the place back",
		ErrInvalid, e.Descriptors[0])
}

// Unwrap returns ErrInvalid.
func (e *ConcurrencyError) Unwrap() error { return ErrInvalid }
