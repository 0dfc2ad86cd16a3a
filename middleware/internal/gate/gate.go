package gate

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
)

// endTimeout is the longest time for a commit or a cancel. The context of the request may have ended by then, so it
// does not count.
const endTimeout = time.Second

// Gate asks a decider. It may be used by any number of goroutines.
type Gate struct {
	Decider   limits.Decider
	Reserver  limits.Reserver  // nil if Ask reserves nothing
	OnFailure limits.OnFailure // default: limits.OnFailureAllow; all others deny
	Logger    *slog.Logger     // default slog.Default()

	mu       sync.Mutex
	silent   time.Time // nothing is logged before
	unlogged int       // failures since the last line
}

// Ask decides a request, or reserves its cost, and waits if it is delayed. If the decider fails, the decision has the
// source limits.FailOpen or limits.FailClosed, and the cause in Err. Ask itself returns an error only if ctx has ended.
//
// A request whose turn comes after its deadline is denied. With package ratelimit it counts nothing then. A client that
// goes away while its request waits keeps the turn: if the turn were given back, other requests could pass at the same
// time as those behind it.
func (g *Gate) Ask(ctx context.Context, r *limits.Request) (*limits.Reservation, error) {
	held, err := g.ask(ctx, r)
	if err != nil {
		if ended := ctx.Err(); ended != nil {
			return nil, ended
		}
		g.Failed(ctx, "no decision of a rate limit", err)
		onFailure := limits.OnFailureDeny
		if g.passes() {
			onFailure = limits.OnFailureAllow
		}
		d, _ := onFailure.Failed(err)
		return limits.NewReservation(d, 0, time.Time{}, nil), nil
	}
	if held.Decision.Err != nil {
		g.Failed(ctx, "no decision of a rate limit", held.Decision.Err)
	}
	if !held.Decision.Allowed || held.Decision.Delay <= 0 {
		held.Decision.Delay = 0
		return held, nil
	}
	err = limits.Sleep(ctx, held.Decision.Delay)
	if err == nil {
		return held, nil
	}
	g.Cancel(ctx, held)
	if !errors.Is(err, limits.ErrTooLong) {
		return nil, err
	}
	d := held.Decision
	d.Allowed, d.RetryAfter, d.Delay = false, d.Delay, 0
	return limits.NewReservation(d, 0, time.Time{}, nil), nil
}

func (g *Gate) ask(ctx context.Context, r *limits.Request) (*limits.Reservation, error) {
	if g.Reserver != nil {
		return g.Reserver.Reserve(ctx, r, limits.ReserveOptions{})
	}
	if deadline, ok := ctx.Deadline(); ok {
		r.MaxDelay = max(time.Until(deadline), 1)
	}
	d, err := g.Decider.Decide(ctx, r)
	if places, ok := errors.AsType[*limits.ConcurrencyError](err); ok {
		if by, ok := g.Decider.(limits.Reserver); ok {
			return g.takePlaces(ctx, by, r, places.Descriptors)
		}
	}
	return limits.NewReservation(d, 0, time.Time{}, nil), err
}

// takePlaces reserves places under the limits of requests at the same time, for as long as the request lasts, and
// decides the other descriptors. A request that is denied by those takes no place.
func (g *Gate) takePlaces(ctx context.Context, by limits.Reserver, r *limits.Request,
	places []int) (*limits.Reservation, error) {
	held, others := *r, *r
	held.Descriptors, others.Descriptors = nil, nil
	for i := range r.Descriptors {
		if slices.Contains(places, i) {
			held.Descriptors = append(held.Descriptors, r.Descriptors[i])
		} else {
			others.Descriptors = append(others.Descriptors, r.Descriptors[i])
		}
	}
	held.Amount = limits.Amount{} // a request takes one place, regardless of its cost
	reservation, err := by.Reserve(ctx, &held, limits.ReserveOptions{})
	if err != nil || !reservation.Decision.Allowed || len(others.Descriptors) == 0 {
		return reservation, err
	}
	d, err := g.Decider.Decide(ctx, &others)
	if err != nil || !d.Allowed {
		g.Cancel(ctx, reservation)
		return limits.NewReservation(d, 0, time.Time{}, nil), err
	}
	reservation.Decision = d
	return reservation, nil
}

// Release gives back the places of a request that is over.
func (g *Gate) Release(ctx context.Context, held *limits.Reservation) {
	if !held.Expires.IsZero() {
		g.Cancel(ctx, held)
	}
}

// Wait waits until a request is allowed. It returns the errors of limits.Wait. If the decider does not answer,
// OnFailure decides whether Wait returns its error.
func (g *Gate) Wait(ctx context.Context, r *limits.Request) error {
	d, err := limits.Wait(ctx, g.Decider, r)
	if d.Err != nil {
		g.Failed(ctx, "no decision of a rate limit", d.Err)
	}
	if err == nil || errors.Is(err, limits.ErrNever) || errors.Is(err, limits.ErrTooLong) {
		return err
	}
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	g.Failed(ctx, "no decision of a rate limit", err)
	if g.passes() {
		return nil
	}
	return err
}

// passes reports whether a request without a decision passes.
func (g *Gate) passes() bool {
	return g.OnFailure == limits.OnFailureDefault || g.OnFailure == limits.OnFailureAllow
}

// Commit charges the real cost of a request.
func (g *Gate) Commit(ctx context.Context, held *limits.Reservation, used limits.Amount) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := held.Commit(ctx, used); err != nil {
		g.Failed(ctx, "the cost of a request was not charged", err)
	}
}

// Cancel gives back the reservation of a request that used nothing.
func (g *Gate) Cancel(ctx context.Context, held *limits.Reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := held.Cancel(ctx); err != nil {
		g.Failed(ctx, "a reservation was not cancelled", err)
	}
}

// Failed logs a failure, at most one a second: when a store is down, every request fails.
func (g *Gate) Failed(ctx context.Context, message string, err error) {
	g.mu.Lock()
	now := time.Now()
	if now.Before(g.silent) {
		g.unlogged++
		g.mu.Unlock()
		return
	}
	unlogged := g.unlogged
	g.silent, g.unlogged = now.Add(time.Second), 0
	g.mu.Unlock()
	cmp.Or(g.Logger, slog.Default()).WarnContext(ctx, message, "error", err, "unlogged", unlogged)
}
