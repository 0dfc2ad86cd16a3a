package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/operator/overridepb"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// overrideError is the answer to a call for which the source returned an error.
func overrideError(err error) error {
	code := connect.CodeUnavailable
	_, unwritable := errors.AsType[*override.EditError](err)
	conflict, conflicts := errors.AsType[*override.ConflictError](err)
	switch {
	case conflicts:
		return connect.NewError(connect.CodeAborted, fmt.Errorf("%s of %s: %w (expected version %d, found %d)",
			logging.Shorten(conflict.Identity.Rule), override.ShortText(conflict.Identity.Entries), conflict, conflict.Expected,
			conflict.Found))
	case unwritable:
		code = connect.CodeInvalidArgument
	case errors.Is(err, override.ErrReadOnly):
		code = connect.CodeFailedPrecondition
	case errors.Is(err, override.ErrFull):
		code = connect.CodeResourceExhausted
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code = connect.Code(grpcstatus.Code(err))
	}
	return connect.NewError(code, errors.New(validText(err.Error())))
}

// readOverride reads a message. The rules are not checked.
func readOverride(now time.Time, m *adminv1.Override, remove bool) (*override.Override, error) {
	if remove {
		i, err := overridepb.Identity(m)
		return &override.Override{Identity: i, Reason: m.GetReason()}, err //nolint:wrapcheck // edits adds the index
	}
	o, err := overridepb.Read(m)
	if err != nil {
		return nil, err //nolint:wrapcheck // edits adds the index
	}
	o.Author, o.Version, o.Changed = "", 0, time.Time{} // the source sets them
	if o.ExpiresAt != 0 && o.ExpiresAt <= now.Unix() {
		return nil, fmt.Errorf("expires_at: %s is in the past", m.GetExpiresAt().AsTime().Format(time.RFC3339))
	}
	return o, nil
}
