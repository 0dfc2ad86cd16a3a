package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// slow answers after a while, or fails when the time for that is up.
type slow struct {
	store *memory.Store
	after time.Duration
}

func (s *slow) Take(ctx context.Context, now time.Time, r *backend.Request) error {
	if d, ok := ctx.Deadline(); ok && time.Until(d) < s.after {
		<-ctx.Done()
		for i := range r.Outcomes {
			r.Outcomes[i] = backend.Outcome{Failed: true}
		}
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
	}
	time.Sleep(s.after) //nolint:forbidigo // virtual time
	return s.store.Take(ctx, now, r)
}

// A take that waits for somebody else's acquisition, and then for an answer of its own, ends within the backend's time,
// with an error that does not look like the caller's deadline.
func TestWaitingTwiceEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 15 * time.Millisecond
		s := &slow{store: memory.New(memory.Options{})}
		leases := New(Options{Backend: s, Timeout: timeout})
		l := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Year)})
		take := func(ctx context.Context, hits int64) error {
			r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
			return leases.Take(ctx, time.Now(), &r)
		}
		for n := 0; leases.permits() == 0; n++ {
			if err := take(t.Context(), 1); err != nil || n == 1000 {
				t.Fatal("no lease", err)
			}
			time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
		}
		if err := take(t.Context(), leases.permits()); err != nil {
			t.Fatal(err)
		}

		s.after = 12 * time.Millisecond
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := take(t.Context(), 1); err != nil {
				t.Errorf("who asks first: %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			began := time.Now()
			err := take(t.Context(), 60) // more than comes back for the first one
			if took := time.Since(began); took != timeout {
				t.Errorf("who waits twice: %v after %v, want an end after %v", err, took, timeout)
			}
			if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("who waits twice: %v", err)
			}
		})
		wg.Wait()
	})
}
