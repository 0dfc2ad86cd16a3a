package assigner_test

import (
	"context"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// A client that joins others has an assignment immediately: until then it lets everything pass.
func TestNewcomer(t *testing.T) {
	for _, after := range []time.Duration{30 * time.Second, 30300 * time.Millisecond, 30700 * time.Millisecond} {
		inWorld(t, assigner.Options{}, []descriptor.NodeSpec{node("k", limitOf(100, descriptor.Second))}, func(w *world) {
			w.join(1000, pair("k", "a"))
			w.pass(after)
			c := w.join(1000, pair("k", "a"))
			c.Open = true
			w.pass(3 * tick)
			if c.holds(quota.None) || c.Outside > 1000*tick.Seconds()+1 {
				t.Errorf("after %s: %g requests of a newcomer passed before its first assignment, it holds %s", after, c.Outside, c.Held.Kind)
			}
		})
	}
}

// restart replaces the replica by a new one, which starts with empty counters in memory. The clients must reconnect.
func (w *world) restart() {
	for _, c := range w.clients {
		c.close()
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(w.limiter.Tree(), limiter.Settings{})
	w.limiter, w.Assigner = l, assigner.New(assigner.Options{Limiter: l})
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Assigner.Run(ctx) }()
	stop := w.stop
	w.stop = func() {
		stop()
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	}
}

// After a restart the busy client has its part immediately, even if an idle one returns first.
func TestBusyAfterARestart(t *testing.T) {
	inWorld(t, assigner.Options{}, []descriptor.NodeSpec{node("k", limitOf(100, descriptor.Second))}, func(w *world) {
		idle := w.join(20, pair("k", "a"))
		w.pass(2 * time.Second)
		busy := w.join(120, pair("k", "a"))
		w.pass(20 * time.Second)
		idle.Demand = 0
		w.pass(42 * time.Second) // the idle one reports in 1 s, the busy one in 3 s
		w.restart()
		idle.reconnect(w)
		busy.reconnect(w)
		w.pass(4 * time.Second)
		before := busy.Passed
		w.pass(10 * time.Second)
		if got := busy.Passed - before; got < 0.9*1000 {
			t.Errorf("the busy client passed %.0f of 1000 requests in the 10 s after it came back: %+v", got, busy.Held)
		}
	})
}

// The first report after a reconnect counts as demand, once.
func TestDemandAfterAReconnect(t *testing.T) {
	for _, restart := range []bool{false, true} {
		inWorld(t, assigner.Options{}, []descriptor.NodeSpec{node("k", limitOf(100, descriptor.Second))}, func(w *world) {
			c := w.join(120, pair("k", "a"))
			w.pass(31 * time.Second)
			if restart {
				w.restart()
			} else {
				c.close()
			}
			c.reconnect(w)
			for range 12 {
				w.pass(time.Second)
				all, _, _ := w.Shares(time.Now(), "d", nil, 1)
				if len(all) == 0 || len(all[0].Held) == 0 {
					continue
				}
				if d := all[0].Held[0].Demand; d < 100 || d > 140 {
					t.Errorf("after a restart: %t: the demand is %.0f per second, want 120", restart, d)
				}
			}
		})
	}
}
