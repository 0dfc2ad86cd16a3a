package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// slow answers after a while, or fails a margin before its deadline.
type slow struct {
	*memory.Store
	after  time.Duration
	margin time.Duration

	mu    sync.Mutex
	calls []call
}

// call is a call that the store received.
type call struct {
	now  time.Time
	hits int64 // hits of the first take
}

// Start implements backend.Store.
func (s *slow) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, s.take(ctx, now, r)
}

func (s *slow) take(ctx context.Context, now time.Time, r *backend.Request) error {
	s.mu.Lock()
	s.calls = append(s.calls, call{now, r.Takes[0].Hits})
	s.mu.Unlock()
	if d, ok := ctx.Deadline(); ok && time.Until(d) < s.after {
		time.Sleep(time.Until(d) - s.margin) //nolint:forbidigo // virtual time
		for i := range r.Outcomes {
			r.Outcomes[i] = backend.Outcome{Failed: true}
		}
		return fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)
	}
	time.Sleep(s.after) //nolint:forbidigo // virtual time
	return backend.Await(ctx, s.Store, now, r)
}

// useUpALease turns a counter hot, and uses the permits of its first lease.
func useUpALease(t *testing.T, leases *Leases, take func(hits int64) error) {
	t.Helper()
	for n := 0; leases.permits() == 0; n++ {
		if err := take(1); err != nil || n == 1000 {
			t.Fatal("no lease", err)
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
	}
	if err := take(leases.permits()); err != nil {
		t.Fatal(err)
	}
}

// A take waits for another take's acquisition and then for its own answer. It ends within the backend's timeout, with
// another error than at the caller's deadline.
func TestWaitingTwiceEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 15 * time.Millisecond
		s := &slow{Store: memory.New(memory.Options{})}
		leases := New(Options{Store: s, Timeout: timeout})
		l := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Year)})
		take := func(ctx context.Context, hits int64) error {
			r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
			return backend.Await(ctx, leases, time.Now(), &r)
		}
		useUpALease(t, leases, func(hits int64) error { return take(t.Context(), hits) })

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
			err := take(t.Context(), 60) // more than the first acquisition returns
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

// A take waits only once for an acquisition of another take. If the acquired permits are used up, it makes a separate
// call, without waiting for the next acquisition.
func TestWaitsForOthersOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{Store: memory.New(memory.Options{})}
		leases := New(Options{Store: s, Timeout: time.Second})
		l := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Year)})
		take := func(hits int64) error {
			r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
			return backend.Await(t.Context(), leases, time.Now(), &r)
		}
		useUpALease(t, leases, take)

		s.after, s.calls = 12*time.Millisecond, nil
		began := time.Now()
		var wg sync.WaitGroup
		start := func(hits int64) {
			wg.Go(func() {
				if err := take(hits); err != nil {
					t.Error(err)
				}
			})
		}
		start(1)
		synctest.Wait()
		// One of these uses the remaining permits of the first acquisition, one acquires more, and one has waited before.
		for range 3 {
			start(s.calls[0].hits - 1)
		}
		wg.Wait()
		var at []time.Duration
		for _, c := range s.calls {
			at = append(at, c.now.Sub(began))
		}
		if want := []time.Duration{0, 12 * time.Millisecond, 12 * time.Millisecond}; !slices.Equal(at, want) {
			t.Errorf("the store was called after %v, want %v", at, want)
		}
	})
}

// Takes with different deadlines wait for one acquisition. Each stops waiting a moment before its own deadline, with a
// deadline error. The others get their answers.
func TestAcquisitionOfACallerWithLittleTime(t *testing.T) {
	for name, c := range map[string]struct {
		leader, follower time.Duration // time until their deadlines; 0: none
		served           bool          // whether the follower gets an answer
		after            time.Duration // how long the follower waits
	}{
		"the follower has time":        {leader: 20 * time.Millisecond, follower: 500 * time.Millisecond, served: true, after: 47 * time.Millisecond},
		"the follower has no deadline": {leader: 20 * time.Millisecond, served: true, after: 47 * time.Millisecond},
		"the follower has less":        {leader: 20 * time.Millisecond, follower: 10 * time.Millisecond, after: 8 * time.Millisecond},
		"the leader has no deadline":   {follower: 20 * time.Millisecond, after: 17 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slow{Store: memory.New(memory.Options{}), margin: 3 * time.Millisecond}
				leases := New(Options{Store: s, Timeout: time.Second})
				l := leased(t, descriptor.Limit{Requests: 1000, Window: window(1, descriptor.Year)})
				take := func(left time.Duration, hits int64) error {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if left > 0 {
						ctx, cancel = context.WithTimeout(ctx, left)
					}
					defer cancel()
					r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
					return backend.Await(ctx, leases, time.Now(), &r)
				}
				useUpALease(t, leases, func(hits int64) error { return take(0, hits) })

				s.after = 30 * time.Millisecond
				late := func(who string, err error) {
					t.Helper()
					if !errors.Is(err, backend.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %v, want the end of its own time", who, err)
					}
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					if err := take(c.leader, 1); c.leader > 0 {
						late("who asks first", err)
					} else if err != nil {
						t.Errorf("who asks first: %v", err)
					}
				})
				synctest.Wait()
				wg.Go(func() {
					began := time.Now()
					err := take(c.follower, 1)
					if took := time.Since(began); took != c.after {
						t.Errorf("who waits for it: after %v, want %v", took, c.after)
					}
					if !c.served {
						late("who waits for it", err)
					} else if err != nil {
						t.Errorf("who waits for it: %v", err)
					}
				})
				wg.Wait()
			})
		})
	}
}
