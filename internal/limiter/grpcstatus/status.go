// Package grpcstatus says which gRPC code and text an error of package limiter has for the caller. Whoever answers a
// caller or an operator uses it, over gRPC or HTTP. Its functions may be called concurrently.
package grpcstatus

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Code is the gRPC code for an error of the limiter. An error that is not the caller's fault nor the rules', and not
// its deadline, is UNAVAILABLE: the caller's failure mode decides what happens to the request.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	_, invalid := errors.AsType[*limiter.InvalidError](err)
	_, notReservable := errors.AsType[*limiter.NotReservableError](err)
	switch {
	case notReservable:
		return codes.FailedPrecondition
	case invalid:
		return codes.InvalidArgument
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	default:
		return codes.Unavailable
	}
}

// Of is the gRPC status for an error of the limiter.
func Of(err error) error {
	return status.Error(Code(err), Message(err))
}

// Message is the text for the caller. It leaves out that the request is invalid, because the code says so.
func Message(err error) string {
	if invalid, ok := errors.AsType[*limiter.InvalidError](err); ok {
		return invalid.Message
	}
	return err.Error()
}
