// Package grpcstatus maps the errors of package limiter to gRPC codes and to texts for clients. It is used for every
// answer to a client or an operator, over gRPC or HTTP. Its functions may be called concurrently.
package grpcstatus

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Code is the gRPC code for an error of the limiter. An error that is caused neither by the request, its deadline nor
// the rules is UNAVAILABLE: the client's failure mode decides what happens to the request.
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

// Message is the text for the client. It leaves out that the request is invalid, because the code shows it.
func Message(err error) string {
	if invalid, ok := errors.AsType[*limiter.InvalidError](err); ok {
		return invalid.Message
	}
	return err.Error()
}
