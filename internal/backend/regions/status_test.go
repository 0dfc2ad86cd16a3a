package regions_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// A process shows the other regions, what its own holds and has granted, and which questions another region did not answer.
func TestStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	a, b := w.of["a"][0], w.of["b"][0]
	redistest.Eventually(t, "each region has asked the other", func(context.Context) error {
		for _, p := range []*process{a, b} {
			if st := p.Status(); st.Peers[0].RTT <= 0 || st.Peers[0].Asked.IsZero() || st.Peers[0].Epoch != 1 || st.Peers[0].Err != nil || st.Why != "" {
				return fmt.Errorf("%+v", st)
			}
		}
		return nil
	})

	here := w.limit("x", escrow("a", descriptor.Limit{Requests: 1_000_000, Window: day}))
	other := *here
	other.Requests = 500_000
	redistest.Eventually(t, "permits are granted and held", func(context.Context) error {
		if _, err := w.takeUnder(b, "x", &other, 1, patience); err != nil {
			return err
		}
		holds, grants := b.Status().Rules, a.Status().Rules
		if len(holds) != 1 || len(grants) != 1 || holds[0].Permits <= 0 || grants[0].Permits < holds[0].Permits {
			return fmt.Errorf("held %+v, granted %+v", holds, grants)
		}
		holds[0].Permits, grants[0].Permits = 0, 0
		if want := (regions.RuleStatus{Mode: descriptor.InEscrow, Home: "a", Counters: 1, Other: 1}); holds[0] != want {
			t.Errorf("%+v, want %+v", holds[0], want)
		}
		if want := (regions.RuleStatus{Mode: descriptor.InEscrow, Home: "a", Counters: 1}); grants[0] != want {
			t.Errorf("%+v, want %+v", grants[0], want)
		}
		return nil
	})
	redistest.Eventually(t, "they are returned", func(context.Context) error {
		if holds, grants := b.Status().Rules[0], a.Status().Rules[0]; holds.Permits != 0 || grants.Permits != 0 {
			return fmt.Errorf("held %d, granted %d", holds.Permits, grants.Permits)
		}
		return nil
	})

	w.limit("bucket", escrow("a", slowBucket()))
	redistest.Eventually(t, "a part of a bucket is given and held", func(context.Context) error {
		if _, err := w.take(b, "bucket", 1, patience); err != nil {
			return err
		}
		if holds, grants := b.Status().Rules[0], a.Status().Rules[0]; holds.Permits <= 0 || grants.Permits != holds.Permits || grants.Permits > 600 {
			return fmt.Errorf("held %d, given %d", holds.Permits, grants.Permits)
		}
		return nil
	})

	unknown := escrow("a", descriptor.Limit{Requests: 1000, Window: day})
	if err := unknown.Compile(); err != nil {
		t.Fatal(err)
	}
	if o, err := w.takeUnder(b, "unknown", &unknown, 1, patience); err == nil {
		t.Errorf("%+v", o)
	}
	if r := b.Status().Peers[0].Refusal; time.Since(r.At) > patience || r.Why != regions.NoRule || r.Domain != "test" || !slices.Equal(r.Keys, []string{"limit"}) {
		t.Errorf("%+v", r)
	}
}

// A region that does not act says why.
func TestWhyARegionDoesNotAct(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	says := func(p *process, want string) {
		t.Helper()
		redistest.Eventually(t, want, func(context.Context) error {
			if st := p.Status(); st.Acts || !strings.Contains(st.Why, want) {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
	}
	a, b := w.of["a"][0], w.of["b"][0]
	restart := func(p *process, change func(*regions.Options)) *process {
		p.stop()
		w.mu.Lock()
		w.of["b"] = nil
		w.mu.Unlock()
		return w.start("b", nil, change)
	}
	w.mu.Lock()
	w.cut["b"] = true
	w.mu.Unlock()
	b = restart(b, func(o *regions.Options) { o.Epoch, o.Before = 2, w.names })
	says(b, "it waits until more than half of the regions before and after have consented")
	w.mu.Lock()
	w.cut["b"] = false
	w.mu.Unlock()
	says(a, "heard of epoch 2")
	says(b, "it became a home with this epoch: it begins in ")
	b = restart(b, func(o *regions.Options) { o.Epoch, o.Before, o.Stopped = 3, w.names, true })
	says(b, "it became a home with this epoch: it begins in ")
}
