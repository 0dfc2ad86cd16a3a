package main

import (
	"context"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
)

// reservationOptions are the settings of reservations.
type reservationOptions struct {
	Key string `name:"reservation-key" env:"RATELIMITD_RESERVATION_KEY" placeholder:"SECRET" help:"Secret for reservation IDs, at least 16 bytes. Unset: a random one, shared in Redis."`
}

const leastReservationKey = 16 // bytes

// reservations sets the key that signs the IDs of reservations.
func (s *starting) reservations(_ context.Context, opts *service.Options) error {
	if opts.ReservationKey = s.options.Reservations.Key; opts.ReservationKey != "" &&
		len(opts.ReservationKey) < leastReservationKey {
		return fmt.Errorf("RATELIMITD_RESERVATION_KEY has fewer than %d bytes: use a longer one, such as the output of "+
			"openssl rand -hex 32", leastReservationKey)
	}
	return nil
}
