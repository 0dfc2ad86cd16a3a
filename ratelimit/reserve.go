package ratelimit

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Reserve holds the amounts of a request until its cost is known: see limits.Reserver. The rules of all its descriptors must have
// reservations. If on_error decides, nothing is held.
func (l *Limiter) Reserve(ctx context.Context, r *Request, o ReserveOptions) (*Reservation, error) {
	c := l.calls.Get().(*call)
	defer l.release(c)
	c.read(r)
	for i := range c.request.Descriptors {
		if d := &c.request.Descriptors[i]; len(d.Amounts) == 0 && d.Hits == 0 {
			d.Hits = 1 // there is no reservation of nothing
		}
	}
	hold := &limiter.Hold{Op: limiter.Reserve, TTL: o.TTL, Least: o.MinHits}
	_, _ = rand.Read(hold.ID[:]) // it never fails
	c.request.Hold = hold
	if err := l.engine.Decide(ctx, time.Now(), &c.request, &c.decision); err != nil {
		return nil, failed(err)
	}
	var d Decision
	c.fill(&d)
	if !d.Allowed || d.Source != limits.Counted {
		return limits.NewReservation(d, 0, time.Time{}, nil), nil
	}
	h := &holder{limiter: l, id: hold.ID, request: Request{Domain: r.Domain}}
	var reserved uint64
	var expires time.Time
	for i, from := range r.Descriptors {
		held := Amount{}
		if i < len(c.decision.Holds) {
			o := &c.decision.Holds[i]
			held.Hits = uint64(max(o.Reserved, 0))
			if reserved == 0 {
				reserved = held.Hits
			}
			if !o.Expires.IsZero() && (expires.IsZero() || o.Expires.Before(expires)) {
				expires = o.Expires
			}
		}
		h.request.Descriptors = append(h.request.Descriptors, Descriptor{Entries: append([]Entry(nil), from.Entries...), Amount: &held})
	}
	if expires.IsZero() {
		h = nil
		return limits.NewReservation(d, 0, expires, nil), nil
	}
	return limits.NewReservation(d, reserved, expires, h), nil
}

// holder ends a reservation.
type holder struct {
	limiter *Limiter
	id      limiter.HoldID
	request Request // its amounts are what is reserved
}

// Commit implements limits.Holder.
func (h *holder) Commit(ctx context.Context, used []Amount) error {
	if n := len(used); n > 1 && n != len(h.request.Descriptors) {
		return failed(&limiter.InvalidError{Message: "Commit: give one amount for all descriptors, or one for each"})
	}
	_, err := h.step(ctx, &limiter.Hold{Op: limiter.Commit, ID: h.id, Final: true}, used)
	return err
}

// Cancel implements limits.Holder.
func (h *holder) Cancel(ctx context.Context) error { return h.Commit(ctx, []Amount{{}}) }

// Extend implements limits.Holder.
func (h *holder) Extend(ctx context.Context, ttl time.Duration) (time.Time, error) {
	return h.step(ctx, &limiter.Hold{Op: limiter.Extend, ID: h.id, TTL: ttl}, []Amount{{}})
}

// step sends a step of the reservation, with an amount for all descriptors or for each, or with what is reserved.
func (h *holder) step(ctx context.Context, hold *limiter.Hold, used []Amount) (expires time.Time, err error) {
	c := h.limiter.calls.Get().(*call)
	defer h.limiter.release(c)
	c.read(&h.request)
	c.request.Hold = hold
	for i := range c.request.Descriptors {
		d := &c.request.Descriptors[i]
		d.Amounts = nil
		switch {
		case len(used) == 1:
			exact(d, &used[0])
		case len(used) > 1:
			exact(d, &used[i])
		default:
			exact(d, h.request.Descriptors[i].Amount)
		}
	}
	if err := h.limiter.engine.Decide(ctx, time.Now(), &c.request, &c.decision); err != nil {
		return expires, failed(err)
	}
	known, limited := false, false
	for i := range c.decision.Holds {
		o := &c.decision.Holds[i]
		limited = limited || o.Some
		known = known || o.Some && o.Result == limiter.HoldDone
		if !o.Expires.IsZero() && (expires.IsZero() || o.Expires.Before(expires)) {
			expires = o.Expires
		}
	}
	for i := range c.decision.Statuses {
		if c.decision.Statuses[i].Degraded != descriptor.OnErrorDefault {
			return expires, limits.ErrUnknownReservation
		}
	}
	if limited && !known {
		return expires, limits.ErrUnknownReservation
	}
	return expires, nil
}
