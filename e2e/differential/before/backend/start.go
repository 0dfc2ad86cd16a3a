package backend

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// Starter is a Store that need not hold its caller up.
type Starter interface {
	Store

	// Start settles a request like Take. If it can do so at once, it returns true, and the error that Take would return.
	// Otherwise it returns false, and calls done with that error later, once, from another goroutine. It uses ctx and r until
	// then. What done does must not take long: other requests wait for it. A request that must be sent may wait for the other
	// requests of its batch; b may be nil.
	Start(ctx context.Context, now time.Time, b *Batch, r *Request, done func(error)) (settled bool, err error)
}

// Start settles a request without holding the caller up, as in Starter. A store that is no Starter gets a goroutine for the
// request.
func Start(ctx context.Context, s Store, now time.Time, b *Batch, r *Request, done func(error)) (settled bool, err error) {
	if starter, ok := s.(Starter); ok {
		return starter.Start(ctx, now, b, r, done)
	}
	StartTake(ctx, s, now, r, done)
	return false, nil
}

// StartTake takes in a goroutine of its own. It is for requests that a Starter cannot settle without waiting several times.
func StartTake(ctx context.Context, s Store, now time.Time, r *Request, done func(error)) {
	go func() {
		var err error
		defer func() {
			if p := recover(); p != nil {
				err = &PanicError{Value: p, Stack: debug.Stack()}
			}
			done(err)
		}()
		err = s.Take(ctx, now, r)
	}()
}

// PanicError is a panic of code that ran for a caller in another goroutine.
type PanicError struct {
	Value any
	Stack []byte
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }
