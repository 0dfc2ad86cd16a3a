package ratelimit

import (
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
)

// failed returns the error of a failed decision, or nil.
func failed(err error) error {
	if invalid, ok := errors.AsType[*limiter.InvalidError](err); ok {
		return fmt.Errorf("%w: %s", limits.ErrInvalid, invalid.Message)
	}
	if invalid, ok := errors.AsType[*limiter.NotReservableError](err); ok {
		return fmt.Errorf("%w: %s", limits.ErrInvalid, invalid.Error())
	}
	return err
}
