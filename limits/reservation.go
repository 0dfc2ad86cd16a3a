package limits

import (
	"context"
	"time"
)

// Reserver sets hits aside for requests whose cost is known only when they are over. A ratelimit.Limiter and a
// client.Client are reservers.
type Reserver interface {
	// Reserve holds the amounts of a request. If not all of them fit, it holds nothing, and Decision.Allowed of the
	// reservation is false.
	Reserve(ctx context.Context, r *Request, o ReserveOptions) (*Reservation, error)
}

// ReserveOptions are the settings of a reservation. The zero value is ready to use.
type ReserveOptions struct {
	TTL time.Duration // lifetime without Commit, Cancel or Extend; 0 means the rule's default
	// MinHits is the smallest amount to reserve if the whole amount does not fit. Then as much as fits is reserved. 0
	// means all or nothing.
	MinHits uint64
}

// Reservation is hits that are set aside until Commit or Cancel ends the reservation or it expires.
type Reservation struct {
	Decision Decision  // Allowed: the hits are set aside, or nothing has to be
	Reserved uint64    // hits that are held under the first descriptor that has a limit
	Expires  time.Time // zero if nothing is held

	holder Holder
}

// Holder ends reservations. A Reserver passes one to NewReservation.
type Holder interface {
	Commit(ctx context.Context, used []Amount) error
	Cancel(ctx context.Context) error
	Extend(ctx context.Context, ttl time.Duration) (expires time.Time, err error)
}

// NewReservation returns a reservation whose methods call h. With nil, nothing is held. It is for code that implements
// a Reserver.
func NewReservation(d Decision, reserved uint64, expires time.Time, h Holder) *Reservation {
	return &Reservation{Decision: d, Reserved: reserved, Expires: expires, holder: h}
}

// Commit charges the hits that the request used, and ends the reservation: one amount for all descriptors, or one for
// each. Without amounts it charges the reserved hits. Here an Amount without hits and units is 0 hits. A commit is
// never denied, because the hits are already used.
func (r *Reservation) Commit(ctx context.Context, used ...Amount) error {
	if r.holder == nil {
		return nil
	}
	return r.holder.Commit(ctx, used)
}

// Cancel ends the reservation and charges nothing.
func (r *Reservation) Cancel(ctx context.Context) error {
	if r.holder == nil {
		return nil
	}
	return r.holder.Cancel(ctx)
}

// Extend lets the reservation last for ttl from now, if it would end earlier.
func (r *Reservation) Extend(ctx context.Context, ttl time.Duration) error {
	if r.holder == nil {
		return nil
	}
	expires, err := r.holder.Extend(ctx, ttl)
	if err == nil {
		r.Expires = expires
	}
	return err
}
