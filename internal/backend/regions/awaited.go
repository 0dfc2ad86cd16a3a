package regions

import (
	"fmt"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// awaited is where takes wait for an answer of the home of their counter.
type awaited struct {
	mu      sync.Mutex
	applied chan struct{} // closed when an answer was applied, or none will come
	refusal error         // why the home does not answer questions about this counter, until retry
	retry   time.Time
}

// wake returns a channel that is closed when it is worth looking again.
func (a *awaited) wake() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.applied == nil {
		a.applied = make(chan struct{})
	}
	return a.applied
}

// end wakes the takes that wait.
func (a *awaited) end(refusal error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusal, a.retry = refusal, time.Now().Add(time.Second)
	if a.applied != nil {
		close(a.applied)
		a.applied = nil
	}
}

// hopeless returns the reason why waiting for the home is of no use, or nil. asks is how it is asked, nil if this region is the home, and asked
// whether it is asked now.
func (a *awaited) hopeless(home string, asks *asker, asked bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.refusal != nil && time.Now().Before(a.retry):
		return a.refusal
	case asks != nil && asks.down.Load():
		return fmt.Errorf("%w: the region %s, which counts this limit, cannot be reached", backend.ErrUnavailable, home)
	case !asked:
		return fmt.Errorf("%w: the region %s, which counts this limit, cannot grant anything now", backend.ErrUnavailable, home)
	}
	return nil
}
