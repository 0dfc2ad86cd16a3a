package operator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
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
			logging.Shorten(conflict.Identity.Rule), logging.Entries(conflict.Identity.Entries), conflict, conflict.Expected, conflict.Found))
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
	if m == nil {
		m = new(adminv1.Override)
	}
	o := &override.Override{Identity: override.Identity{Domain: m.GetDomain(), Rule: m.GetRule(), Limit: m.GetLimit()}, Reason: m.GetReason()}
	if len(m.GetEntries()) > override.MaxEntries {
		return nil, fmt.Errorf("entries: more than %d", override.MaxEntries)
	}
	for _, e := range m.GetEntries() {
		o.Entries = append(o.Entries, descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	if remove {
		return o, nil
	}
	var kinds []override.Numbers
	if m.RequestsPerUnit != nil {
		kinds = append(kinds, override.Numbers{Kind: override.Replace, Requests: m.GetRequestsPerUnit()})
	}
	if f := m.GetFactor(); f != 0 {
		millionths := math.Round(f * override.One)
		if !(millionths >= 1 && f <= override.MaxFactor) {
			return nil, fmt.Errorf("factor: it must be at least 0.000001 and at most %d", override.MaxFactor)
		}
		kinds = append(kinds, override.Numbers{Kind: override.Scale, Requests: uint64(millionths)})
	}
	if m.GetUnlimited() {
		kinds = append(kinds, override.Numbers{Kind: override.Unlimited})
	}
	if m.GetBlocked() {
		kinds = append(kinds, override.Numbers{Kind: override.Blocked})
	}
	if len(kinds) != 1 {
		return nil, errors.New("requests_per_unit, factor, unlimited, blocked: exactly one of them is needed")
	}
	o.Numbers = kinds[0]
	o.Burst = m.GetBurst()
	var err error
	if o.NotBefore, err = readTime("not_before", m.GetNotBefore()); err != nil {
		return nil, err
	}
	if o.ExpiresAt, err = readTime("expires_at", m.GetExpiresAt()); err != nil {
		return nil, err
	}
	if o.ExpiresAt != 0 && o.ExpiresAt <= now.Unix() {
		return nil, fmt.Errorf("expires_at: %s is in the past", m.GetExpiresAt().AsTime().Format(time.RFC3339))
	}
	return o, nil
}

// readTime returns a time in seconds since the Unix epoch, 0 if it is absent.
func readTime(field string, t *timestamppb.Timestamp) (int64, error) {
	switch {
	case t == nil:
		return 0, nil
	case !t.IsValid() || t.GetSeconds() <= 0:
		return 0, fmt.Errorf("%s: it must lie between the years 1970 and 9999", field)
	case t.GetNanos() != 0:
		return 0, fmt.Errorf("%s: it must be a whole second", field)
	}
	return t.GetSeconds(), nil
}

func overrideMessage(o *override.Override) *adminv1.Override {
	if o == nil {
		return nil
	}
	m := &adminv1.Override{
		Domain: validText(o.Domain), Rule: validText(o.Rule), Limit: validText(o.Limit),
		Burst: o.Burst, Unlimited: o.Kind == override.Unlimited, Blocked: o.Kind == override.Blocked,
		Reason: validText(o.Reason), Author: validText(o.Author), Version: o.Version,
	}
	for _, e := range o.Entries {
		m.Entries = append(m.Entries, &adminv1.Entry{Key: validText(e.Key), Value: validText(e.Value)})
	}
	switch o.Kind {
	case override.Replace:
		m.RequestsPerUnit = proto.Uint64(o.Requests)
	case override.Scale:
		m.Factor = float64(o.Requests) / override.One
	}
	if o.NotBefore != 0 {
		m.NotBefore = &timestamppb.Timestamp{Seconds: o.NotBefore}
	}
	if o.ExpiresAt != 0 {
		m.ExpiresAt = &timestamppb.Timestamp{Seconds: o.ExpiresAt}
	}
	if !o.Changed.IsZero() {
		m.ChangedAt = timestamppb.New(o.Changed)
	}
	return m
}
