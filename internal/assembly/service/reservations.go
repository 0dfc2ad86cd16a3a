package service

import (
	"slices"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/server/reservation"
)

// reservationKey is the key in Redis, after the prefix of all keys.
const reservationKey = "{reservations}:key"

// signReservations returns the signer of reservation IDs.
func (s *Service) signReservations() *reservation.Signer {
	ids, secret := reservation.NewSigner(), s.o.ReservationKey
	switch {
	case secret != "":
		ids.SetKey(reservation.KeyFrom(secret))
	case s.counters.Shared == nil:
		ids.SetKey(reservation.NewKey())
	default:
		shared := reservation.SharedKey{
			Client: s.counters.Shared, Key: s.o.Counters.KeyPrefix + reservationKey, Signer: ids, Needed: s.reserves(),
			Log: s.o.Log,
		}
		s.o.Tasks.Add(shared.Run)
	}
	return ids
}

// reserves returns a function that reports whether an active rule allows reservations.
func (s *Service) reserves() func() bool {
	var seen atomic.Pointer[descriptor.Tree]
	return func() bool {
		tree := s.Limiter.Tree()
		if tree == nil || tree == seen.Load() {
			return false
		}
		for _, r := range tree.Rules {
			if slices.ContainsFunc(r.Limits, func(l descriptor.Limit) bool { return l.Reservable() }) {
				return true
			}
		}
		seen.Store(tree) // the tree has no rule with reservations
		return false
	}
}
