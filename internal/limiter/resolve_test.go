package limiter_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// origins is a store that notes where takes come from.
type origins struct {
	backend.Store
	seen []*backend.Origin
}

func (o *origins) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request, done func(error)) (bool, error) {
	for i := range r.Takes {
		seen := r.Takes[i].Origin
		if seen != nil { // it is valid until the answer
			seen = &backend.Origin{Domain: seen.Domain, Entries: slices.Clone(seen.Entries)}
		}
		o.seen = append(o.seen, seen)
	}
	return o.Store.Start(ctx, now, b, r, done)
}

func acrossRegions(r *descriptor.Rule) {
	for i := range r.Limits {
		r.Limits[i].Regions = &descriptor.Regions{Mode: descriptor.AtHome, Home: "eu"}
	}
}

// A take has an origin only if its limit is counted across regions.
func TestOrigin(t *testing.T) {
	store := &origins{Store: memory.New(memory.Options{})}
	f := newFixtureOn(t, store, limiter.Settings{}, perMinute("k", "", 10), perMinute("far", "", 10, acrossRegions))
	f.ask(1, "k=a")
	f.ask(1, "far=b")
	if store.seen[0] != nil || store.seen[1] == nil || store.seen[1].Domain != "d" {
		t.Fatalf("origins %+v", store.seen)
	}
	if got := store.seen[1].Entries; !slices.Equal(got, entries("far=b")) {
		t.Errorf("entries %v", got)
	}
}

// Another region's question is answered with the rules and overrides of this one.
func TestResolve(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 10), perMinute("far", "", 10, overridable, acrossRegions))
	minute := descriptor.Limit{Requests: 1, Window: descriptor.Window{Unit: descriptor.Minute}}
	tag := minute.Tag()
	resolve := func(tag string, pairs ...string) (backend.Resolved, bool) {
		return f.Resolve(f.now, "d", entries(pairs...), tag)
	}
	c, ok := resolve(tag, "far=b")
	if !ok || c.Limit.Requests != 10 || c.Limit.Regions == nil || c.Rule == nil || string(c.Key) != f.peek("far=b").List[0].Key {
		t.Fatalf("%+v, %v", c, ok)
	}
	for name, question := range map[string][]string{"no rule": {tag, "other=b"}, "another limit": {"f3600", "far=b"}} {
		if c, ok := resolve(question[0], question[1]); ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
	f.override("d.far", "", override.Numbers{Kind: override.Replace, Requests: 3}, "far=b")
	if c, ok := resolve(tag, "far=b"); !ok || c.Limit.Requests != 3 {
		t.Errorf("with an override: %+v, %v", c.Limit, ok)
	}
	f.override("d.far", "", override.Numbers{Kind: override.Blocked}, "far=b")
	if c, ok := resolve(tag, "far=b"); !ok || c.Limit.Capacity() != 0 || c.Limit.Regions == nil || c.Free {
		t.Errorf("of a blocked caller: %+v, %v", c.Limit, ok)
	}
	f.override("d.far", "", override.Numbers{Kind: override.Unlimited}, "far=b")
	if c, ok := resolve(tag, "far=b"); !ok || !c.Free {
		t.Errorf("of a caller without a limit: %+v, %v", c, ok)
	}
}

// A limit that does not apply at the time takes nothing.
func TestResolveInactive(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("far", "", 10, atNight, acrossRegions))
	tag := f.Tree().Rules[0].Tag(&f.Tree().Rules[0].Limits[0])
	if c, ok := f.Resolve(f.now, "d", entries("far=b"), tag); !ok || !c.Free {
		t.Errorf("at noon: %+v, %v", c, ok)
	}
}

// Sums has the same number in replicas with the same rules and overrides, and another one as soon as Resolve may
// differ.
func TestSums(t *testing.T) {
	create := func(requests uint64, changes ...func(*descriptor.Rule)) *fixture {
		return newFixture(t, limiter.Settings{}, perMinute("far", "", requests, append(changes, overridable, acrossRegions)...))
	}
	if n, rules := limiter.New(limiter.Options{Store: memory.New(memory.Options{})}).Sums(noon); n != 0 || rules != 0 {
		t.Errorf("%d and %d without rules", n, rules)
	}
	sum := func(f *fixture) uint64 { n, _ := f.Sums(f.now); return n }
	a, b := create(10), create(10)
	same := func(what string, want bool) {
		t.Helper()
		if x, y := sum(a), sum(b); x == 0 || y == 0 || (x == y) != want || x != sum(a) {
			t.Errorf("%s: %d and %d", what, x, y)
		}
	}
	same("the same rules", true)
	b.SetReplicas(3) // three replicas divide nothing here
	same("another number of replicas", true)
	b = create(11)
	same("another limit", false)
	b = create(10)
	block := override.Numbers{Kind: override.Blocked, NotBefore: noon.Unix() + 60, ExpiresAt: noon.Unix() + 120}
	a.override("d.far", "", block, "far=b")
	same("an override", false)
	b.override("d.far", "", override.Numbers{Kind: override.Unlimited}, "far=b")
	same("another override", false)
	b.override("d.far", "", block, "far=b")
	same("the same overrides", true)
	for _, at := range []time.Duration{60, 119, 120} {
		a.now = noon.Add(at * time.Second)
		same("later", b.now.Unix() >= noon.Unix()+60 && at == 119)
		b.now = a.now
		same("then", true)
	}
}
