package backend

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Permits says what hits of a limit are worth that were added to a counter and not used at once. Leases depend on it.
type Permits struct {
	Kind PermitKind

	Within  time.Duration // windows: how long one of them, or a part of it, is at most that a permit is charged to; 0: the limit's window
	Renewed bool          // windows: nothing is used when the next one begins
	Slack   time.Duration // windows: by how much Boundary may be too short
}

// PermitKind says what becomes of a permit that is not used at once.
type PermitKind uint8

// The kinds of permits.
const (
	NoPermits       PermitKind = iota // none can be taken in advance
	PermitsOfWindow                   // as good as new until its window, sub-window or interval ends, and worth nothing after
	PermitsOfBucket                   // the bucket refills whether it is used or not: it counts against a smaller bucket, and wears off
	PermitsOfLog                      // it counts for longer than a window, and is lost when it is not used in time
)

// PermitsOf says what permits are worth that a take asks for in advance.
func PermitsOf(t *Take) Permits {
	return algorithms[t.Limit.Algorithm].permits(t.Limit, t.CountDenied)
}

// Boundary is how long, after the moment an outcome speaks of, a permit that was taken then stays in the window it was
// charged to; never too long. Only PermitsOfWindow have one.
func Boundary(l *descriptor.Limit, o *Outcome) time.Duration {
	return algorithms[l.Algorithm].boundary(l, o)
}

// RefusalLasts says whether a refusal of a take holds until its RetryAfter, whatever is refused until then.
func RefusalLasts(t *Take) bool {
	return !t.CountDenied || !algorithms[t.Limit.Algorithm].refusedMove()
}
