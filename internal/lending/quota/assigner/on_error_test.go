package assigner_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// shares is a store of shares for this replica only. It can fail.
type shares struct{ away atomic.Bool }

func (s *shares) Renew(_ context.Context, asks []quota.Ask) ([]quota.Share, error) {
	all := make([]quota.Share, len(asks))
	if s.away.Load() {
		return all, errors.New("connection refused")
	}
	for i, a := range asks {
		all[i] = quota.Share{Rate: a.Rate, Burst: a.Burst, FairRate: a.Rate, FairBurst: a.Burst, Replicas: 1, TTL: 45 * time.Second}
	}
	return all, nil
}

// While the store of shares is unreachable, a replica uses its shares for another 13 s. Then on_error decides. When the
// store is back, the replicas share the limit again.
func TestOnErrorOfShares(t *testing.T) {
	for on, want := range map[descriptor.OnError]struct {
		kind  quota.Kind
		rate  float64 // passed requests per second
		about float64
	}{
		descriptor.OnErrorAllow: {quota.AllowAll, 40, 1},
		descriptor.OnErrorDeny:  {quota.DenyAll, 0, 0},
		descriptor.OnErrorLocal: {quota.Tokens, 10, 1},
		descriptor.OnErrorError: {quota.Tokens, 0, 0}, // the assignments have expired
	} {
		t.Run(descriptor.OnErrorNames[on], func(t *testing.T) {
			store, rule := &shares{}, node("k", limitOf(10, descriptor.Second))
			rule.Rule.OnError = on
			inWorld(t, assigner.Options{Store: store, Log: slog.New(slog.DiscardHandler)}, []descriptor.NodeSpec{rule}, func(w *world) {
				c := w.join(40, pair("k", "a"))
				w.pass(30 * time.Second)
				store.away.Store(true)
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
				store.away.Store(false)
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

// If the counter of a bucket cannot be read, on_error decides immediately.
func TestOnErrorOfCounters(t *testing.T) {
	for on, want := range map[descriptor.OnError]quota.Kind{
		descriptor.OnErrorAllow: quota.AllowAll, descriptor.OnErrorDeny: quota.DenyAll, descriptor.OnErrorLocal: quota.None, descriptor.OnErrorError: quota.None,
	} {
		t.Run(descriptor.OnErrorNames[on], func(t *testing.T) {
			rule := node("k", limitOf(10, descriptor.Second))
			rule.Rule.OnError = on
			inWorld(t, assigner.Options{}, []descriptor.NodeSpec{rule}, func(w *world) {
				w.counters.away.Store(true)
				c := w.join(40, pair("k", "a"))
				w.pass(20 * time.Second)
				if !c.holds(want) {
					t.Errorf("%s, want %s", c.Held.Kind, want)
				}
				w.counters.away.Store(false)
				w.pass(30 * time.Second)
				if !c.holds(quota.Tokens) {
					t.Errorf("after the counters are back: %s", c.Held.Kind)
				}
			})
		})
	}
}

// The counters of a bucket in use are read while its clients pass requests. If that fails, its clients get the
// assignment for on_error, and get their shares again once the counters can be read.
func TestOnErrorOfCountersInUse(t *testing.T) {
	minute, hour := limitOf(600, descriptor.Minute), limitOf(36_000, descriptor.Hour) // 10 per second
	for on, want := range map[descriptor.OnError]struct {
		kind quota.Kind
		rate float64 // passed requests per second
	}{
		descriptor.OnErrorAllow: {quota.AllowAll, 40},
		descriptor.OnErrorDeny:  {quota.DenyAll, 0},
		descriptor.OnErrorLocal: {quota.Tokens, 10},
		descriptor.OnErrorError: {quota.None, 0}, // the last assignments have expired
	} {
		for unit, limit := range map[string]descriptor.Limit{"minute": minute, "hour": hour} {
			for name, store := range map[string]assigner.Store{"alone": nil, "with shares": &shares{}} {
				t.Run(descriptor.OnErrorNames[on]+"/"+unit+"/"+name, func(t *testing.T) {
					rule := node("k", limit)
					rule.Rule.OnError = on
					inWorld(t, assigner.Options{Store: store}, []descriptor.NodeSpec{rule}, func(w *world) {
						c := w.join(40, pair("k", "a"))
						w.pass(30 * time.Second)
						w.counters.away.Store(true)
						w.pass(70 * time.Second)
						before := w.passed()
						w.pass(30 * time.Second)
						rate := (w.passed() - before) / 30
						if rate < want.rate-1 || rate > want.rate+1 && want.kind != quota.Tokens { // it may have many tokens left
							t.Errorf("%s, %.1f requests a second pass, want %s and %g", c.Held.Kind, rate, want.kind, want.rate)
						}
						if want.kind != quota.None && (!c.holds(want.kind) || c.Held.Rate() > want.rate) {
							t.Errorf("%+v, want %s and %g a second", c.Held, want.kind, want.rate)
						}
						w.counters.away.Store(false)
						w.pass(10 * time.Second)
						before = w.passed()
						w.pass(time.Minute) // the minute may be exhausted for a part of it
						if rate = (w.passed() - before) / 60; c.holds(quota.AllowAll) || rate < 5 {
							t.Errorf("after the counters are back: %s, %.1f requests a second pass", c.Held.Kind, rate)
						}
					})
				})
			}
		}
	}
}

// Clients notice nothing if the counters cannot be read for a moment.
func TestCountersAwayForAMoment(t *testing.T) {
	for _, on := range []descriptor.OnError{descriptor.OnErrorError, descriptor.OnErrorLocal} {
		t.Run(descriptor.OnErrorNames[on], func(t *testing.T) {
			rule := node("k", limitOf(6000, descriptor.Minute)) // 100 per second
			rule.Rule.OnError = on
			inWorld(t, assigner.Options{Store: &shares{}}, []descriptor.NodeSpec{rule}, func(w *world) {
				w.join(60, pair("k", "a"))
				w.join(60, pair("k", "a"))
				w.pass(70 * time.Second)
				for range 3 {
					w.counters.away.Store(true)
					w.pass(7 * time.Second) // so that they are read
					w.counters.away.Store(false)
					before := w.passed()
					w.pass(30 * time.Second)
					if rate := (w.passed() - before) / 30; rate < 85 {
						t.Errorf("%.1f requests a second pass, want 100", rate)
					}
				}
			})
		})
	}
}

// The rules change while the counters cannot be read. Each bucket of a limit gets its new limit once they can.
func TestRulesChangeWhileCountersAreAway(t *testing.T) {
	shared := func(l descriptor.Limit) descriptor.NodeSpec {
		return descriptor.NodeSpec{Key: "k", Value: "customer-*", ShareThreshold: true, Rule: &descriptor.Rule{Limits: []descriptor.Limit{l}}}
	}
	inWorld(t, assigner.Options{}, []descriptor.NodeSpec{shared(limitOf(600, descriptor.Minute))}, func(w *world) {
		var clients []*client
		for _, name := range []string{"a", "b", "c"} {
			clients = append(clients, w.join(5, pair("k", "customer-"+name)))
		}
		w.pass(30 * time.Second)
		w.counters.away.Store(true)
		w.limiter.Swap(treeOf(t, shared(limitOf(0, descriptor.Minute))), limiter.Settings{})
		w.pass(20 * time.Second)
		w.counters.away.Store(false)
		w.pass(10 * time.Second)
		for i, c := range clients {
			if !c.holds(quota.DenyAll) {
				t.Errorf("client %d: %s after the limit became 0", i, c.Held.Kind)
			}
		}
	})
}
