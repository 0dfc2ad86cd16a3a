package backendtest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reset clears counters.
func (m *Model) Reset(_ context.Context, counters []backend.Counter) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range counters {
		delete(m.states, string(c.Key))
		m.reserved = slices.DeleteFunc(m.reserved, func(h *modelReservation) bool { return h.key == string(c.Key) })
	}
	return nil
}

// runReset checks that a counter that was cleared is like a new one, under every algorithm, and that no other counter
// changes.
func runReset(t *testing.T, open func(t testing.TB) backend.Store) {
	const limit = 12
	clearAll := func(t *testing.T, s backend.Store, counters ...backend.Counter) {
		t.Helper()
		if err := s.Reset(t.Context(), counters); err != nil {
			t.Fatal(err)
		}
	}
	for name, l := range EveryAlgorithm(limit) {
		t.Run(name, func(t *testing.T) {
			s, prefix := open(t), newCase()
			k, other := key(prefix, "k", l), key(prefix, "other", l)
			for range 2 {
				one(t, s, epoch, backend.Take{Key: other, Limit: l, Hits: 1})
			}
			for round := range 3 {
				for hit := range int64(limit) {
					if o := one(t, s, epoch, backend.Take{Key: k, Limit: l, Hits: 1}); !o.Allowed || o.Before != hit {
						t.Fatalf("round %d, hit %d: %s", round, hit, outcomeText(&o))
					}
				}
				if o := one(t, s, epoch, backend.Take{Key: k, Limit: l, Hits: 1, CountDenied: round == 1}); o.Allowed {
					t.Fatalf("round %d: %s, want denied", round, outcomeText(&o))
				}
				clearAll(t, s, backend.Counter{Key: k, Limit: l})
				if o := one(t, s, epoch, backend.Take{Key: k, Limit: l}); o.Used != 0 {
					t.Fatalf("round %d, after the reset: %s", round, outcomeText(&o))
				}
			}
			if o := one(t, s, epoch, backend.Take{Key: other, Limit: l}); o.Used != 2 {
				t.Errorf("another counter has %d in use, want 2", o.Used)
			}
		})
	}

	t.Run("many at once, some of them new", func(t *testing.T) {
		s, prefix := open(t), newCase()
		var all []backend.Counter
		for name, l := range EveryAlgorithm(limit) {
			for i := range 10 {
				k := key(prefix, fmt.Sprint(name, i), l)
				all = append(all, backend.Counter{Key: k, Limit: l})
				if i%2 == 0 {
					one(t, s, epoch, backend.Take{Key: k, Limit: l, Hits: 3})
				}
			}
		}
		clearAll(t, s, append(all, all...)...)
		clearAll(t, s)
		for _, c := range all {
			if o := one(t, s, epoch, backend.Take{Key: c.Key, Limit: c.Limit}); o.Used != 0 {
				t.Errorf("%s: %d in use after the reset", c.Key, o.Used)
			}
		}
	})

	// Between two resets at most the limit is allowed, regardless of concurrent takes.
	t.Run("while others take", func(t *testing.T) {
		s, l := open(t), Limit("40/1h")
		k := key(newCase(), "k", l)
		const resets = 5
		var admitted atomic.Int64
		together(t, func(worker int) error {
			r := &backend.Request{Takes: make([]backend.Take, 1), Outcomes: make([]backend.Outcome, 1)}
			for range 20 {
				if worker < resets {
					return s.Reset(t.Context(), []backend.Counter{{Key: k, Limit: l}})
				}
				r.Takes[0] = backend.Take{Key: k, Limit: l, Hits: 1}
				if err := backend.Await(t.Context(), s, epoch, r); err != nil {
					return err
				}
				if r.Outcomes[0].Allowed {
					admitted.Add(1)
				}
			}
			return nil
		})
		if n := admitted.Load(); n < 40 || n > 40*(resets+1) {
			t.Errorf("%d admitted with %d resets of a limit of 40", n, resets)
		}
		clearAll(t, s, backend.Counter{Key: k, Limit: l})
		if o := one(t, s, epoch, backend.Take{Key: k, Limit: l}); o.Used != 0 {
			t.Errorf("%d in use after the last reset", o.Used)
		}
	})
}
