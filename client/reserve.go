package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// endTimeout is the least time that Commit, Cancel and Extend of a reservation may take. No request waits for them, and
// a lost commit leaves the whole reservation charged.
const endTimeout = time.Second

// Reserve holds the amounts of a request until its cost is known: see limits.Reserver. The rules of all its descriptors
// must have reservations. Errors and failures are as for Decide; without an answer from the service, the client assumes
// that nothing is held.
//
// Commit, Cancel and Extend of the reservation may take a second, or Options.Timeout if that is longer. While
// the client is not connected, they wait. They return limits.ErrUnknownReservation if the reservation has ended in the
// service. After any other error you may call them again.
func (c *Client) Reserve(ctx context.Context, r *limits.Request, o limits.ReserveOptions) (*limits.Reservation, error) {
	start := time.Now()
	held, err := c.reserve(ctx, r, o)
	if err != nil {
		c.decided(ctx, r, new(limits.Decision), err, start)
		return nil, err
	}
	c.decided(ctx, r, &held.Decision, nil, start)
	return held, nil
}

func (c *Client) reserve(ctx context.Context, r *limits.Request, o limits.ReserveOptions) (*limits.Reservation, error) {
	// only for its checks, because grpc reports such a request like a failure of the service
	if _, err := appendRequest(nil, r); err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	answer, err := c.reservations.Reserve(call, reserveRequest(r, o))
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, context.Canceled
		}
		if err = errorOf(err); errors.Is(err, limits.ErrInvalid) {
			return nil, err
		}
		d, err := c.fail(err)
		if err != nil {
			return nil, err
		}
		return limits.NewReservation(d, 0, time.Time{}, nil), nil
	}
	d := decisionOf(answer.GetCode(), answer.GetStatuses(), answer.GetHeaders())
	var reserved uint64
	for _, s := range answer.GetStatuses() {
		if reserved = s.GetReserved(); reserved > 0 {
			break
		}
	}
	if answer.GetId() == "" || answer.GetExpireTime() == nil {
		return limits.NewReservation(d, 0, time.Time{}, nil), nil
	}
	return limits.NewReservation(d, reserved, answer.GetExpireTime().AsTime(), &holder{c, answer.GetId()}), nil
}

func reserveRequest(r *limits.Request, o limits.ReserveOptions) *ratelimitdv1.ReserveRequest {
	m := &ratelimitdv1.ReserveRequest{Domain: r.Domain, Amount: toReserve(&r.Amount), MinHits: o.MinHits}
	if o.TTL > 0 {
		m.Ttl = durationpb.New(o.TTL)
	}
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		to := &ratelimitdv1.Descriptor{}
		for _, e := range d.Entries {
			to.Entries = append(to.Entries, &ratelimitdv1.Entry{Key: e.Key, Value: e.Value})
		}
		if d.Amount != nil {
			to.Amount = toReserve(d.Amount)
		}
		m.Descriptors = append(m.Descriptors, to)
	}
	return m
}

// toReserve is an amount to hold: at least one hit, because the service rejects empty reservations.
func toReserve(a *limits.Amount) *ratelimitdv1.Amount {
	n := a.OrOneHit()
	if n.Peek {
		n.Hits = 1
	}
	return &ratelimitdv1.Amount{Hits: n.Hits, Units: n.Units}
}

// holder ends a reservation.
type holder struct {
	client *Client
	id     string
}

// Commit implements limits.Holder.
func (h *holder) Commit(ctx context.Context, used []limits.Amount) error {
	m := &ratelimitdv1.CommitRequest{Id: h.id}
	for i := range used {
		m.Actual = append(m.Actual, &ratelimitdv1.Amount{Hits: used[i].Hits, Units: used[i].Units})
	}
	return h.end(ctx, func(ctx context.Context) (ratelimitdv1.Result, error) {
		answer, err := h.client.reservations.Commit(ctx, m, grpc.WaitForReady(true))
		return answer.GetResult(), err
	})
}

// Cancel implements limits.Holder.
func (h *holder) Cancel(ctx context.Context) error {
	return h.end(ctx, func(ctx context.Context) (ratelimitdv1.Result, error) {
		answer, err := h.client.reservations.Cancel(ctx, &ratelimitdv1.CancelRequest{Id: h.id}, grpc.WaitForReady(true))
		return answer.GetResult(), err
	})
}

// Extend implements limits.Holder.
func (h *holder) Extend(ctx context.Context, ttl time.Duration) (expires time.Time, err error) {
	m := &ratelimitdv1.ExtendRequest{Id: h.id}
	if ttl > 0 {
		m.Ttl = durationpb.New(ttl)
	}
	var until *timestamppb.Timestamp
	err = h.end(ctx, func(ctx context.Context) (ratelimitdv1.Result, error) {
		answer, err := h.client.reservations.Extend(ctx, m, grpc.WaitForReady(true))
		until = answer.GetExpireTime()
		return answer.GetResult(), err
	})
	if until != nil {
		expires = until.AsTime()
	}
	return expires, err
}

// end calls a method that ends or extends a reservation.
func (h *holder) end(ctx context.Context, method func(context.Context) (ratelimitdv1.Result, error)) error {
	ctx, cancel := context.WithTimeout(ctx, max(h.client.timeout, endTimeout))
	defer cancel()
	result, err := method(ctx)
	switch {
	case err != nil:
		return errorOf(err)
	case result != ratelimitdv1.Result_RESULT_DONE:
		return limits.ErrUnknownReservation
	default:
		return nil
	}
}
