package assigner_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assigner"
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/quota"
)

// shares is a store of shares that this process has for itself, and that can be away.
type shares struct{ away bool }

func (s *shares) Renew(_ context.Context, asks []quota.Ask) ([]quota.Share, error) {
	all := make([]quota.Share, len(asks))
	if s.away {
		return all, errors.New("connection refused")
	}
	for i, a := range asks {
		all[i] = quota.Share{Rate: a.Rate, Burst: a.Burst, FairRate: a.Rate, FairBurst: a.Burst, Processes: 1, TTL: 45 * time.Second}
	}
	return all, nil
}

// While the store of shares is away, a process goes on with its shares for 13 s, and then on_error decides. When it is back, they share the
// limit again.
func TestOnErrorOfShares(t *testing.T) {
	for on, want := range map[descriptor.OnError]struct {
		kind  quota.Kind
		rate  float64 // of the requests that pass
		about float64
	}{
		descriptor.OnErrorAllow: {quota.AllowAll, 40, 1},
		descriptor.OnErrorDeny:  {quota.DenyAll, 0, 0},
		descriptor.OnErrorLocal: {quota.Tokens, 10, 1},
		descriptor.OnErrorError: {quota.Tokens, 0, 0}, // which have run out
	} {
		t.Run(descriptor.OnErrorNames[on], func(t *testing.T) {
			store, rule := &shares{}, node("k", limitOf(10, descriptor.Second))
			rule.Rule.OnError = on
			inWorld(t, assigner.Options{Store: store, Log: slog.New(slog.DiscardHandler)}, []descriptor.NodeSpec{rule}, func(w *world) {
				c := w.join(40, pair("k", "a"))
				w.pass(30 * time.Second)
				store.away = true
				w.pass(7 * time.Second) // its last answer may be 5 s old
				if !c.holds(quota.Tokens) {
					t.Errorf("7 s after the store went away: %s", c.Held.Kind)
				}
				w.pass(60 * time.Second)
				before := w.passed()
				w.pass(30 * time.Second)
				if rate := (w.passed() - before) / 30; !c.holds(want.kind) || rate < want.rate-want.about || rate > want.rate+want.about {
					t.Errorf("%s, %.1f requests a second pass, want %s and %g", c.Held.Kind, rate, want.kind, want.rate)
				}
				store.away = false
				w.pass(40 * time.Second)
				before = w.passed()
				w.pass(30 * time.Second)
				if rate := (w.passed() - before) / 30; !c.holds(quota.Tokens) || rate < 9 || rate > 11 {
					t.Errorf("after the store is back: %s, %.1f requests a second pass", c.Held.Kind, rate)
				}
			})
		})
	}
}

// If the counter of a bucket cannot be read, on_error decides at once.
func TestOnErrorOfCounters(t *testing.T) {
	for on, want := range map[descriptor.OnError]quota.Kind{
		descriptor.OnErrorAllow: quota.AllowAll, descriptor.OnErrorDeny: quota.DenyAll, descriptor.OnErrorLocal: quota.None, descriptor.OnErrorError: quota.None,
	} {
		t.Run(descriptor.OnErrorNames[on], func(t *testing.T) {
			rule := node("k", limitOf(10, descriptor.Second))
			rule.Rule.OnError = on
			inWorld(t, assigner.Options{}, []descriptor.NodeSpec{rule}, func(w *world) {
				w.counters.err = backend.ErrUnavailable
				c := w.join(40, pair("k", "a"))
				w.pass(20 * time.Second)
				if !c.holds(want) {
					t.Errorf("%s, want %s", c.Held.Kind, want)
				}
				w.counters.err = nil
				w.pass(30 * time.Second)
				if !c.holds(quota.Tokens) {
					t.Errorf("after the counters are back: %s", c.Held.Kind)
				}
			})
		})
	}
}
