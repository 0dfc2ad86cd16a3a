package client

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// requestOf is the message for a request.
func requestOf(r *limits.Request) *ratelimitdv1.DecideRequest {
	return &ratelimitdv1.DecideRequest{Domain: r.Domain, Descriptors: descriptorsOf(r), Amount: amountOf(&r.Amount)}
}

func descriptorsOf(r *limits.Request) []*ratelimitdv1.Descriptor {
	all := make([]*ratelimitdv1.Descriptor, len(r.Descriptors))
	for i := range r.Descriptors {
		from := &r.Descriptors[i]
		to := &ratelimitdv1.Descriptor{Entries: make([]*ratelimitdv1.Entry, len(from.Entries))}
		entries := make([]ratelimitdv1.Entry, len(from.Entries)) // one allocation for all
		for j, e := range from.Entries {
			entries[j].Key, entries[j].Value = e.Key, e.Value
			to.Entries[j] = &entries[j]
		}
		if from.Amount != nil {
			to.Amount = amountOf(from.Amount)
		}
		all[i] = to
	}
	return all
}

// amountOf is the message for an amount; nil is one hit.
func amountOf(a *limits.Amount) *ratelimitdv1.Amount {
	switch {
	case a.Peek:
		return new(ratelimitdv1.Amount)
	case a.Hits == 0 && len(a.Units) == 0:
		return &ratelimitdv1.Amount{Hits: 1}
	default:
		return exactly(a)
	}
}

func exactly(a *limits.Amount) *ratelimitdv1.Amount {
	return &ratelimitdv1.Amount{Hits: a.Hits, Units: a.Units}
}

// decisionOf is the decision of an answer.
func decisionOf(r *ratelimitdv1.DecideResponse) (limits.Decision, error) {
	if e := r.GetError(); e != nil {
		return limits.Decision{}, failureOf(codes.Code(uint32(e.GetCode())), e.GetMessage(), nil) //nolint:gosec // a code of gRPC
	}
	d := limits.Decision{Allowed: r.GetCode() == ratelimitdv1.Code_CODE_OK, Delay: r.GetDelay().AsDuration(), Statuses: make([]limits.Status, len(r.GetStatuses()))}
	for i, s := range r.GetStatuses() {
		d.Statuses[i] = limits.Status{
			Allowed: s.GetCode() == ratelimitdv1.Code_CODE_OK, Rule: s.GetRule(), Limit: s.GetLimit(), Remaining: s.GetRemaining(),
			ResetAfter: s.GetResetAfter().AsDuration(), Degraded: s.GetDegraded(),
		}
		if s.GetDegraded() {
			d.Source = limits.OnError
		}
		refuse(&d, &d.Statuses[i], s.GetRetryAfter())
	}
	for _, h := range r.GetHeaders() {
		d.Headers = append(d.Headers, limits.Header{Name: h.GetKey(), Value: h.GetValue()})
	}
	return d, nil
}

// refuse sets when a refused request may come again, in a status and in the decision.
func refuse(d *limits.Decision, s *limits.Status, retryAfter *durationpb.Duration) {
	if s.Allowed {
		return
	}
	if s.RetryAfter = limits.Never; retryAfter != nil {
		s.RetryAfter = retryAfter.AsDuration()
	}
	if !d.Allowed && d.RetryAfter != limits.Never && (s.RetryAfter == limits.Never || s.RetryAfter > d.RetryAfter) {
		d.RetryAfter = s.RetryAfter
	}
}

// reservationOf is the decision of an answer to Reserve.
func reservationOf(r *ratelimitdv1.ReserveResponse) (d limits.Decision, reserved uint64, expires time.Time) {
	d = limits.Decision{Allowed: r.GetCode() == ratelimitdv1.Code_CODE_OK, Statuses: make([]limits.Status, len(r.GetStatuses()))}
	for i, s := range r.GetStatuses() {
		d.Statuses[i] = limits.Status{
			Allowed: s.GetCode() == ratelimitdv1.Code_CODE_OK, Rule: s.GetRule(), Limit: s.GetLimit(), Remaining: s.GetRemaining(),
			ResetAfter: s.GetResetAfter().AsDuration(),
		}
		refuse(&d, &d.Statuses[i], s.GetRetryAfter())
		if reserved == 0 {
			reserved = s.GetReserved()
		}
	}
	if d.Allowed && r.GetId() == "" {
		d.Source = limits.OnError
	}
	if e := r.GetExpireTime(); e != nil {
		expires = e.AsTime()
	}
	return d, reserved, expires
}
