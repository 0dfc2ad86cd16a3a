package server

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// codeOf is the gRPC code of what a Decider returned. Whatever is not the caller's fault and not its deadline is
// UNAVAILABLE: the caller's own failure mode decides.
func codeOf(err error) codes.Code {
	switch {
	case err == nil:
		return codes.OK
	case errors.Is(err, limiter.ErrInvalid):
		return codes.InvalidArgument
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	default:
		return codes.Unavailable
	}
}

// statusOf is the gRPC status of what a Decider returned.
func statusOf(err error) error {
	return status.Error(codeOf(err), messageOf(err))
}

// messageOf is what a caller is told. That a request is invalid is said by the code.
func messageOf(err error) string {
	return strings.TrimPrefix(err.Error(), limiter.ErrInvalid.Error()+": ")
}
