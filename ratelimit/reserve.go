package ratelimit

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Reserve holds the amounts of a request until its cost is known: see limits.Reserver. The rules of all its descriptors
// must have reservations. If on_error decides, nothing is held.
func (l *Limiter) Reserve(ctx context.Context, r *Request, o ReserveOptions) (*Reservation, error) {
	return l.reserveObserved(ctx, r, nil, o)
}

func (l *Limiter) reserveObserved(ctx context.Context, r *Request, numbers *override.Numbers,
	o ReserveOptions) (*Reservation, error) {
	if l.observer == nil {
		return l.reserve(ctx, r, numbers, o)
	}
	start := time.Now()
	held, err := l.reserve(ctx, r, numbers, o)
	d := new(Decision)
	if err == nil {
		d = &held.Decision
	}
	l.observer.Decided(ctx, r, d, err, time.Since(start))
	return held, err
}

func (l *Limiter) reserve(ctx context.Context, r *Request, numbers *override.Numbers,
	o ReserveOptions) (*Reservation, error) {
	if err := l.check(r); err != nil {
		return nil, err
	}
	c := l.calls.Get().(*call)
	c.read(r, numbers)
	held, err := l.hold(ctx, c, r, o)
	l.release(c) // not after a panic
	return held, err
}

// hold reserves the hits of a call's request.
func (l *Limiter) hold(ctx context.Context, c *call, r *Request, o ReserveOptions) (*Reservation, error) {
	for i := range c.request.Descriptors {
		if d := &c.request.Descriptors[i]; len(d.Amounts) == 0 && d.Hits == 0 {
			d.Hits = 1 // a reservation holds at least one hit
		}
	}
	reservation := &limiter.Reservation{Op: limiter.Reserve, TTL: o.TTL, Least: o.MinHits}
	_, _ = rand.Read(reservation.ID[:]) // it returns no error
	c.request.Reservation = reservation
	if err := l.engine.Decide(ctx, time.Now(), &c.request, &c.decision); err != nil {
		return nil, failed(err)
	}
	if err := l.checkMatched(c); err != nil {
		return nil, err
	}
	d := c.answer()
	expires := c.decision.ReservedUntil()
	if !c.decision.Reserved() || expires.IsZero() {
		return limits.NewReservation(d, 0, time.Time{}, nil), nil
	}
	h := &holder{limiter: l, id: reservation.ID, request: Request{Domain: r.Domain}}
	var reserved uint64
	for i, from := range r.Descriptors {
		held := Amount{}
		if i < len(c.decision.Reservations) {
			held.Hits = uint64(max(c.decision.Reservations[i].Reserved, 0))
			if reserved == 0 {
				reserved = held.Hits
			}
		}
		h.request.Descriptors = append(h.request.Descriptors,
			Descriptor{Entries: append([]Entry(nil), from.Entries...), Amount: &held})
	}
	return limits.NewReservation(d, reserved, expires, h), nil
}

// Acquire waits until a request has a place under a Concurrency limit, given as pairs of key and value. Call release
// when the request is over: see limits.Acquire.
func (l *Limiter) Acquire(ctx context.Context, domain string, pairs ...string) (release func(), err error) {
	return limits.Acquire(ctx, l, limits.NewRequest(domain, pairs...))
}

// holder ends a reservation.
type holder struct {
	limiter *Limiter
	id      limiter.ReservationID
	request Request // the request, with the reserved amounts
}

// Commit implements limits.Holder.
func (h *holder) Commit(ctx context.Context, used []Amount) error {
	if n := len(used); n > 1 && n != len(h.request.Descriptors) {
		return fmt.Errorf("%w: %d amounts for %d descriptors: give one for all, or one for each", limits.ErrInvalid, n,
			len(h.request.Descriptors))
	}
	_, err := h.step(ctx, &limiter.Reservation{Op: limiter.Commit, ID: h.id, Final: true}, used)
	return err
}

// Cancel implements limits.Holder.
func (h *holder) Cancel(ctx context.Context) error { return h.Commit(ctx, []Amount{{}}) }

// Extend implements limits.Holder.
func (h *holder) Extend(ctx context.Context, ttl time.Duration) (time.Time, error) {
	return h.step(ctx, &limiter.Reservation{Op: limiter.Extend, ID: h.id, TTL: ttl}, []Amount{{}})
}

// step sends a step of the reservation. used has one amount for all descriptors, one for each, or none for the reserved
// amounts.
func (h *holder) step(ctx context.Context, reservation *limiter.Reservation,
	used []Amount) (expires time.Time, err error) {
	if err := h.limiter.check(&h.request); err != nil {
		return expires, err
	}
	c := h.limiter.calls.Get().(*call)
	c.read(&h.request, nil)
	expires, err = h.end(ctx, c, reservation, used)
	h.limiter.release(c) // not after a panic
	return expires, err
}

func (h *holder) end(ctx context.Context, c *call, reservation *limiter.Reservation,
	used []Amount) (expires time.Time, err error) {
	c.request.Reservation = reservation
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
	if !c.decision.ReservationKnown() {
		return expires, limits.ErrUnknownReservation
	}
	return c.decision.ReservedUntil(), nil
}
