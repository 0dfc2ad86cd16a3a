package regions_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// A rule that names another home in the same epoch keeps the one that it had, in all regions: also in one that has not used the rule
// before, and in processes that start later.
func TestHomeIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 3, processes: 1, memory: "c"})
	// Each changes to a home that it did not have.
	hashed := regions.HomeOf(keyOf("h"), w.names)
	other := w.names[0]
	if other == hashed {
		other = w.names[1]
	}
	for name, homes := range map[string][2]string{"x": {"a", "b"}, "y": {"b", "c"}, "h": {"", other}, "z": {other, ""}} {
		w.rule(name, escrow(homes[0], algorithms()["fixed"]))
		first := homes[0]
		if first == "" {
			first = hashed
		}
		if o, err := w.take(w.of[first][0], name, 600, patience); err != nil || !o.Allowed {
			t.Fatalf("%s: %+v, %v", name, o, err)
		}
		w.rule(name, escrow(homes[1], algorithms()["fixed"]))
		w.start("b", nil)
		w.awaitHomes()
		for _, region := range w.names {
			for _, p := range w.of[region] {
				if o, err := w.take(p, name, 1, patience); err != nil || o.Allowed {
					t.Errorf("%s, from %v: 601 of 600 in region %s: %+v, %v", name, homes, region, o, err)
				}
			}
		}
		redistest.Eventually(t, "the status says so", func(context.Context) error {
			for _, region := range w.names {
				want := regions.KeptHome{Rule: "test.limit_" + name, Named: homes[1], Home: homes[0]}
				if kept := w.of[region][0].Status().Kept; !slices.Contains(kept, want) {
					return fmt.Errorf("%s keeps %+v, not %+v", region, kept, want)
				}
			}
			return nil
		})
	}
}

// A Redis that was flushed learns the homes from the processes of its region again.
func TestHomesOutliveAFlush(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	old := w.rule("x", escrow("a", algorithms()["fixed"]))
	b := w.of["b"][0]
	if o, err := w.take(b, "x", 10, patience); err != nil || !o.Allowed {
		t.Fatalf("%+v, %v", o, err)
	}
	if err := w.client("b").FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, "the homes are recorded again", func(context.Context) error {
		n, err := w.client("b").Keys(t.Context(), "*homes*").Result()
		if err == nil && len(n) == 0 {
			return fmt.Errorf("there is no such key")
		}
		return err
	})
	b.stop()
	w.mu.Lock()
	w.of["b"] = nil
	w.mu.Unlock()
	changed := escrow("b", *old)
	changed.Regions.Rule = old.Regions.Rule
	w.limit("x", changed)
	b = w.start("b", nil)
	redistest.Eventually(t, "a new process asks the home that was recorded", func(context.Context) error {
		o, err := w.take(b, "x", 500, patience)
		if err == nil && !o.Allowed {
			return fmt.Errorf("%+v", o)
		}
		return err
	})
	if o, err := w.take(w.of["a"][0], "x", 91, patience); err != nil || o.Allowed {
		t.Errorf("a admits more than the limit: %+v, %v", o, err)
	}
}

// A region that becomes a home with a new epoch, and was not told the list before, counts nothing of these rules: it would begin from zero. When it is
// told with another epoch, it becomes their home.
func TestHomeWithoutTheListBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	restart := func(epoch uint64, before []string) {
		for _, name := range w.names {
			for _, p := range w.of[name] {
				p.stop()
			}
			w.mu.Lock()
			w.of[name] = nil
			w.mu.Unlock()
		}
		w.start("a", nil, func(o *regions.Options) { o.Epoch = epoch })
		w.start("b", nil, func(o *regions.Options) { o.Epoch, o.Before = epoch, before })
	}
	w.rule("x", atHome("a", algorithms()["fixed"]))
	w.rule("y", escrow("b", algorithms()["fixed"]))
	for _, name := range []string{"x", "y"} {
		if o, err := w.take(w.of["b"][0], name, 10, patience); err != nil || !o.Allowed {
			t.Fatalf("%s: %+v, %v", name, o, err)
		}
	}
	w.rule("x", atHome("b", algorithms()["fixed"]))
	restart(2, nil)
	w.awaitHomes()
	redistest.Eventually(t, "the status says so", func(context.Context) error {
		if kept := w.of["b"][0].Status().Kept; len(kept) != 1 || kept[0] != (regions.KeptHome{Rule: "test.limit_x", Named: "b", Home: "a"}) {
			return fmt.Errorf("%+v", kept)
		}
		return nil
	})
	for _, name := range w.names {
		if o, err := w.take(w.of[name][0], "x", 1, patience); err == nil {
			t.Errorf("region %s: %+v", name, o)
		}
		redistest.Eventually(t, "other rules are counted", func(context.Context) error {
			o, err := w.take(w.of[name][0], "y", 1, patience)
			if err == nil && !o.Allowed {
				err = fmt.Errorf("%+v", o)
			}
			return err
		})
	}
	restart(3, w.names)
	redistest.Eventually(t, "the home has moved", func(context.Context) error {
		st := w.of["b"][0].Status()
		if len(st.Kept) > 0 || !strings.Contains(st.Why, "it begins in ") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}
