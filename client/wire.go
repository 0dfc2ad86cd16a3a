package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// maxRequest bounds the message of one request. The service rejects a larger one (4 MiB) in a way that cannot be
// distinguished from an overload: it would pass under limits.OnFailureAllow.
const maxRequest = 1 << 20

// appendRequest appends a request as a ratelimitd.v1.DecideRequest. Two requests have the same bytes only if they are
// the same, so the bytes are also their key in the denial cache. The error is limits.ErrInvalid.
//
// Messages are written without the generated code. So a call encodes its request once, for both purposes and without
// garbage.
func appendRequest(b []byte, r *limits.Request) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return b, err
	}
	valid := utf8.ValidString(r.Domain)
	b = appendText(b, 1, r.Domain)
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		b = appendNested(b, 2, func(b []byte) []byte {
			for _, e := range d.Entries {
				valid = valid && utf8.ValidString(e.Key) && utf8.ValidString(e.Value)
				b = appendNested(b, 1, func(b []byte) []byte { return appendText(appendText(b, 1, e.Key), 2, e.Value) })
			}
			if d.Amount != nil {
				b = appendAmount(b, 2, d.Amount, &valid)
			}
			return b
		})
	}
	b = appendAmount(b, 3, &r.Amount, &valid)
	switch {
	case !valid: // the service would reject the whole batch
		return b, fmt.Errorf("%w: the domain, a key or a value is not UTF-8", limits.ErrInvalid)
	case len(b) > maxRequest:
		return b, fmt.Errorf("%w: its message has %d bytes, more than %d", limits.ErrInvalid, len(b), maxRequest)
	}
	return b, nil
}

// appendAmount appends a ratelimitd.v1.Amount.
func appendAmount(b []byte, num protowire.Number, a *limits.Amount, valid *bool) []byte {
	n := a.OrOneHit()
	return appendNested(b, num, func(b []byte) []byte {
		if n.Hits > 0 {
			b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), n.Hits)
		}
		if len(n.Units) == 0 {
			return b
		}
		for _, kind := range slices.Sorted(maps.Keys(n.Units)) {
			*valid = *valid && utf8.ValidString(kind)
			b = appendNested(b, 2, func(b []byte) []byte {
				return protowire.AppendVarint(protowire.AppendTag(appendText(b, 1, kind), 2, protowire.VarintType), n.Units[kind])
			})
		}
		return b
	})
}

func appendText(b []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

// appendNested appends a message that f appends. Most are shorter than 128 bytes: their length is one byte.
func appendNested(b []byte, num protowire.Number, f func([]byte) []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	start := len(b) + 1
	b = f(append(b, 0))
	size := uint64(len(b) - start)
	if size < 0x80 {
		b[start-1] = byte(size)
		return b
	}
	var room [10]byte
	length := protowire.AppendVarint(room[:0], size)
	b[start-1] = length[0]
	return slices.Insert(b, start, length[1:]...)
}

// answerOf returns the decision of an answer. The error is limits.ErrInvalid, or the gRPC status that the request would
// have had if it had been sent alone.
func answerOf(r *ratelimitdv1.DecideResponse) (d limits.Decision, err error) {
	if e := r.GetError(); e != nil {
		return d, errorOf(status.Error(codes.Code(uint32(e.GetCode())), e.GetMessage()))
	}
	d = decisionOf(r.GetCode(), r.GetStatuses(), r.GetHeaders())
	d.Delay = atLeastZero(r.GetDelay())
	for i, s := range r.GetStatuses() {
		d.Statuses[i].Penalty = s.GetPenalty()
	}
	return d, nil
}

// decisionOf makes a decision from the fields that DecideResponse and ReserveResponse have in common.
func decisionOf[S statusMessage](code ratelimitdv1.Code, statuses []S, headers []*ratelimitdv1.Header) limits.Decision {
	all := make([]limits.Status, len(statuses))
	for i, s := range statuses {
		all[i] = statusOf(s)
	}
	d := limits.NewDecision(code == ratelimitdv1.Code_CODE_OK, all)
	if n := len(headers); n > 0 {
		d.Headers = make([]limits.Header, n)
		for i, h := range headers {
			d.Headers[i] = limits.Header{Name: h.GetKey(), Value: h.GetValue()}
		}
	}
	return d
}

// statusMessage is the part that ratelimitd.v1.DecideStatus and DescriptorStatus have in common.
type statusMessage interface {
	GetCode() ratelimitdv1.Code
	GetRule() string
	GetLimit() uint64
	GetRemaining() uint64
	GetResetAfter() *durationpb.Duration
	GetRetryAfter() *durationpb.Duration
	GetDegraded() bool
}

func statusOf(s statusMessage) limits.Status {
	to := limits.Status{
		Allowed:    s.GetCode() != ratelimitdv1.Code_CODE_OVER_LIMIT,
		Rule:       s.GetRule(),
		Limit:      s.GetLimit(),
		Remaining:  s.GetRemaining(),
		ResetAfter: atLeastZero(s.GetResetAfter()),
		Degraded:   s.GetDegraded(),
	}
	if !to.Allowed {
		to.RetryAfter = limits.Never
		if after := s.GetRetryAfter(); after != nil {
			to.RetryAfter = atLeastZero(after)
		}
	}
	return to
}

func atLeastZero(d *durationpb.Duration) time.Duration { return max(0, d.AsDuration()) }

// errorOf returns limits.ErrInvalid for the status of a request that cannot be decided, context.DeadlineExceeded for
// one that took too long, and other errors as they are.
func errorOf(err error) error {
	switch s := status.Convert(err); s.Code() {
	case codes.InvalidArgument, codes.FailedPrecondition:
		return fmt.Errorf("%w: %s", limits.ErrInvalid, s.Message())
	case codes.DeadlineExceeded:
		if s.Message() == context.DeadlineExceeded.Error() {
			return context.DeadlineExceeded
		}
		return fmt.Errorf("%w: %s", context.DeadlineExceeded, s.Message())
	default:
		return err
	}
}
