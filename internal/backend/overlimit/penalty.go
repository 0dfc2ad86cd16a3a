package overlimit

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// outlasts reports whether a penalty lasts longer than its limit can deny a take. Then only the penalty determines the
// retry-after, and the counter of the limit need not be read.
func outlasts(penalty *backend.Outcome, t *backend.Take) bool {
	return t.Hits <= int64(t.Limit.Capacity()) && penalty.RetryAfter >= drains(t.Limit)
}

// drains is the time in which everything that a limit allows comes back, rounded up.
func drains(l *descriptor.Limit) time.Duration {
	length := l.Window.Length()
	if l.Capacity() <= l.Requests || l.Requests == 0 {
		return length
	}
	windows := min(l.Capacity()/l.Requests+1, uint64(descriptor.MaxPenalty/length)+1)
	return length * time.Duration(windows)
}
