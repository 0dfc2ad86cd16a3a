package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// settleTimeout is how long Commit, Cancel and Extend may take, if the deadline of their context is not nearer. No request waits for
// them, and what is not committed is charged as reserved.
const settleTimeout = time.Second

// Reserve holds the amounts of a request until its cost is known: see limits.Reserver. The rules of all its descriptors must have
// reservations. If the service does not answer, Options.OnFailure decides, and nothing is held.
func (c *Client) Reserve(ctx context.Context, r *limits.Request, o limits.ReserveOptions) (*limits.Reservation, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	message := &ratelimitdv1.ReserveRequest{Domain: r.Domain, Descriptors: descriptorsOf(r), Amount: amountOf(&r.Amount), MinHits: o.MinHits}
	if o.TTL > 0 {
		message.Ttl = durationpb.New(o.TTL)
	}
	answer, err := c.reservations.Reserve(ctx, message)
	if err != nil {
		d, err := c.failed(failure(err))
		if err != nil {
			return nil, err
		}
		return limits.NewReservation(d, 0, time.Time{}, nil), nil
	}
	d, reserved, expires := reservationOf(answer)
	if answer.GetId() == "" {
		return limits.NewReservation(d, 0, time.Time{}, nil), nil
	}
	return limits.NewReservation(d, reserved, expires, &holder{c, answer.GetId()}), nil
}

// holder ends a reservation of the service.
type holder struct {
	client *Client
	id     string
}

// Commit implements limits.Holder.
func (h *holder) Commit(ctx context.Context, used []limits.Amount) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	message := &ratelimitdv1.CommitRequest{Id: h.id}
	for i := range used {
		message.Actual = append(message.Actual, exactly(&used[i]))
	}
	answer, err := h.client.reservations.Commit(ctx, message)
	if err != nil {
		return failure(err)
	}
	return known(answer.GetResult())
}

// Cancel implements limits.Holder.
func (h *holder) Cancel(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	answer, err := h.client.reservations.Cancel(ctx, &ratelimitdv1.CancelRequest{Id: h.id})
	if err != nil {
		return failure(err)
	}
	return known(answer.GetResult())
}

// Extend implements limits.Holder.
func (h *holder) Extend(ctx context.Context, ttl time.Duration) (expires time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	answer, err := h.client.reservations.Extend(ctx, &ratelimitdv1.ExtendRequest{Id: h.id, Ttl: durationpb.New(ttl)})
	if err != nil {
		return expires, failure(err)
	}
	return answer.GetExpireTime().AsTime(), known(answer.GetResult())
}

func known(r ratelimitdv1.Result) error {
	if r == ratelimitdv1.Result_RESULT_UNKNOWN {
		return limits.ErrUnknownReservation
	}
	return nil
}
