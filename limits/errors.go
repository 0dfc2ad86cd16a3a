package limits

import "errors"

var (
	// ErrInvalid is the error of a request that cannot be decided, such as one without a domain. Repeating it does
	// not help.
	ErrInvalid = errors.New("invalid request")
	// ErrUnknownReservation is the error of a reservation that has been committed or cancelled, or that expired.
	ErrUnknownReservation = errors.New("the reservation is not known: it has been committed or cancelled, or it expired")
)
