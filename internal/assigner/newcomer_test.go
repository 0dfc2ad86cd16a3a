package assigner_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assigner"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/quota"
)

// A client that joins others has an assignment at once: until then everything passes at it.
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
