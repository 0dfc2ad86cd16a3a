package main

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/server/reservation"
)

// reservationOptions are the settings of reservations.
type reservationOptions struct {
	Key string `name:"reservation-key" env:"RATELIMITD_RESERVATION_KEY" placeholder:"SECRET" help:"Secret of at least 16 bytes that signs reservation IDs; use the variable, because other users can see the command line. Unset: a random one, shared in Redis."`
}

const (
	reservationKey      = "{reservations}:key" // in Redis, after CACHE_KEY_PREFIX
	leastReservationKey = 16                   // bytes
)

// signReservations returns what signs the ids of reservations.
func (s *service) signReservations() (*reservation.Signer, error) {
	ids, secret := reservation.NewSigner(), s.options.Reservations.Key
	switch {
	case secret != "" && len(secret) < leastReservationKey:
		return nil, fmt.Errorf("RATELIMITD_RESERVATION_KEY has fewer than %d bytes: use a longer one, such as the output of openssl rand -hex 32", leastReservationKey)
	case secret != "":
		ids.SetKey(reservation.KeyFrom(secret))
	case s.counters.Shared == nil:
		ids.SetKey(reservation.NewKey())
	default:
		shared := reservation.SharedKey{
			Client: s.counters.Shared, Key: s.options.Backend.KeyPrefix + reservationKey, Signer: ids, Needed: s.reserves(), Log: s.log,
		}
		s.tasks.Add(shared.Run)
	}
	return ids, nil
}

// reserves returns a function that reports whether an active rule allows reservations.
func (s *service) reserves() func() bool {
	var seen atomic.Pointer[descriptor.Tree]
	return func() bool {
		tree := s.limiter.Tree()
		if tree == nil || tree == seen.Load() {
			return false
		}
		for _, r := range tree.Rules {
			if slices.ContainsFunc(r.Limits, func(l descriptor.Limit) bool { return l.Reservable() }) {
				return true
			}
		}
		seen.Store(tree) // it has none
		return false
	}
}
