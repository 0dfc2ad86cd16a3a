package descriptor

import (
	"fmt"
	"math/bits"
	"strings"
	"time"
)

// Reservations are the bounds within which clients may reserve hits under a limit: take them before their number is
// known, and correct the number later.
type Reservations struct {
	TTL    time.Duration // default duration of a reservation
	MaxTTL time.Duration // longest duration

	MaxShare       uint32 // the largest reservation, in parts per million of the limit's capacity
	MaxOutstanding int    // most reservations of one counter at the same time

	// Release gives the hits of a reservation back when it expires. Without it they stay charged: a client that disappears
	// is charged the hits that it has reserved.
	Release bool

	Cost Cost // price of amounts in hits; the same for all limits of a rule
}

// MaxShareWhole is the MaxShare that allows one reservation to be as large as the limit.
const MaxShareWhole = 1_000_000

// DefaultReservations returns the bounds of a rule that allows reservations and sets none of them.
func DefaultReservations() Reservations {
	return Reservations{TTL: time.Minute, MaxTTL: 10 * time.Minute, MaxShare: MaxShareWhole, MaxOutstanding: 10_000}
}

// Largest returns the most hits that one reservation under a limit may have.
func (r *Reservations) Largest(l *Limit) int64 {
	high, low := bits.Mul64(l.Capacity(), uint64(r.MaxShare))
	n, _ := bits.Div64(high, low, MaxShareWhole)
	return int64(n)
}

// Reservable reports whether hits of a limit can be reserved. Then they may be returned one by one at any time: a
// denial may end at any moment, and no hits can be taken in advance.
func (l *Limit) Reservable() bool { return l.Reservations != nil || l.Algorithm == Concurrency }

// String returns the bounds as a rule file writes them, or "" for nil.
func (r *Reservations) String() string {
	if r == nil {
		return ""
	}
	end := "charge"
	if r.Release {
		end = "release"
	}
	return fmt.Sprintf("{ttl: %v, max_ttl: %v, max_share: %v, max_outstanding: %d, on_expire: %s}",
		r.TTL, r.MaxTTL, float64(r.MaxShare)/MaxShareWhole, r.MaxOutstanding, end)
}

// Words describes the bounds for people. It returns none for nil.
func (r *Reservations) Words() string {
	if r == nil {
		return ""
	}
	b := []byte("held for " + words(r.TTL))
	if r.MaxTTL != r.TTL {
		b = fmt.Appendf(b, " (at most %s)", words(r.MaxTTL))
	}
	if r.MaxShare < MaxShareWhole {
		b = fmt.Appendf(b, ", each at most %v of the limit", float64(r.MaxShare)/MaxShareWhole)
	}
	b = fmt.Appendf(b, ", at most %d at once", r.MaxOutstanding)
	if r.Release {
		b = append(b, ", released when they expire"...)
	} else {
		b = append(b, ", charged when they expire"...)
	}
	return string(b)
}

// words writes a duration without the zeros at its end: 1m, not 1m0s.
func words(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// The keys of entries that name a reservation instead of a counter. Such an entry is the last one of its descriptor.
const (
	ReserveID = "reserve_id"
	CommitID  = "commit_id"
)

// ReservationEntry reports whether an entry with this key can name a reservation.
func ReservationEntry(key string) bool { return key == ReserveID || key == CommitID }
