package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Permits describes how long permits of a limit stay valid. A permit is a hit that is added to a counter in advance and
// used later. Leases depend on it.
type Permits struct {
	Kind PermitKind

	// windows: maximum length of the window, or part of a window, that a permit is charged to; 0 means the limit's window
	Within  time.Duration
	Renewed bool // windows: whether the next one starts with nothing used
}

// PermitKind describes how a permit loses its value if it is not used immediately.
type PermitKind uint8

// The kinds of permits.
const (
	NoPermits PermitKind = iota // none can be taken in advance
	// fully valid until its window, sub-window or interval ends, and worth nothing after that
	PermitsOfWindow
	// loses its value over time, because the bucket refills in the meantime; it is counted under a smaller bucket
	PermitsOfBucket
	PermitsOfLog // counts for longer than a window, and is lost if it is not used in time
)

// PermitsOf describes the permits that a take can acquire in advance.
func PermitsOf(t *Take) Permits {
	if t.Limit.Reservable() || t.Reservation != nil {
		return Permits{} // held hits may come back at any time, and only the store notices
	}
	return algorithms[t.Limit.Algorithm].permits(t.Limit, t.CountDenied)
}

// Boundary is how long a permit that is taken at the time of an outcome stays in the window it is charged to, counted
// from that time. Only PermitsOfWindow have a boundary.
func Boundary(l *descriptor.Limit, o *Outcome) time.Duration {
	return algorithms[l.Algorithm].boundary(l, o)
}

// DenialLasts reports whether a denial of a take holds until its RetryAfter, even if more hits are denied before then.
func DenialLasts(t *Take) bool {
	return !t.CountDenied || !algorithms[t.Limit.Algorithm].rejectedMove()
}
