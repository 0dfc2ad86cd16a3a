package limiter_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/override"
	"github.com/ratelimitd/ratelimitd/internal/usage"
)

// The history of a counter has what a caller used, was refused, and was refused by an override, under one key.
func TestHistoryOfAnOverriddenCaller(t *testing.T) {
	for _, algorithm := range []descriptor.Algorithm{descriptor.FixedWindow, descriptor.TokenBucket, descriptor.SlidingLog} {
		t.Run(algorithm.String(), func(t *testing.T) { historyOfAnOverriddenCaller(t, algorithm) })
	}
}

func historyOfAnOverriddenCaller(t *testing.T, algorithm descriptor.Algorithm) {
	listed := func(r *descriptor.Rule) { overridable(r); r.Usage, r.Limits[0].Algorithm = true, algorithm }
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 10, listed)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index := usage.New(usage.Options{Store: new(usage.Memory), Sketches: new(usage.MemorySketches)})
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Usage: index})
	l.Swap(tree, limiter.Settings{})
	d := limiter.Descriptor{Entries: entries("k=a"), HasHits: true, Hits: 3}
	set := new(override.Set)
	for _, step := range []struct {
		kind             override.Kind
		allowed, refused uint64 // so far
	}{
		{0, 3, 0}, {override.Blocked, 3, 3}, {override.Unlimited, 3, 3}, {0, 6, 3},
	} {
		set = set.With(set.Version+1, []override.Change{{
			Identity: override.Identity{Domain: "d", Rule: "d.k", Entries: d.Entries}, Numbers: override.Numbers{Kind: step.kind},
		}})
		l.SetOverrides(set)
		if err := l.Decide(t.Context(), noon, &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}}, &limiter.Decision{}); err != nil {
			t.Fatal(err)
		}
		counters, err := l.Peek(t.Context(), noon, "d", &d)
		if err != nil {
			t.Fatal(err)
		}
		index.FlushHistory(t.Context(), noon)
		all, err := index.History(t.Context(), noon, [][]byte{[]byte(counters.List[0].Key)})
		if err != nil {
			t.Fatal(err)
		}
		if m := all[0][usage.HistoryMinutes-1]; uint64(m.Allowed.Hits) != step.allowed || uint64(m.Refused.Hits) != step.refused {
			t.Errorf("override %v: %d allowed and %d refused, want %d and %d", step.kind, m.Allowed.Hits, m.Refused.Hits, step.allowed, step.refused)
		}
	}
}

// A counter is listed until its own window ends. A penalty counts nothing, so it does not keep the counter in the list.
func TestUsageDuringAPenalty(t *testing.T) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		perMinute("k", "", 2, penalty(10*time.Minute), func(r *descriptor.Rule) { r.Usage = true }),
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index := usage.New(usage.Options{Store: new(usage.Memory), Sketches: new(usage.MemorySketches)})
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Usage: index})
	l.Swap(tree, limiter.Settings{})
	if err := l.Decide(t.Context(), noon, request(3, "k=a"), &limiter.Decision{}); err != nil {
		t.Fatal(err)
	}
	index.Flush(t.Context(), noon)
	for after, want := range map[time.Duration]int{49 * time.Second: 1, 2 * time.Minute: 0} {
		found, _, err := index.List(t.Context(), noon.Add(after), "d", [][]descriptor.Entry{entries("k=a")}, 0, 10)
		if err != nil || len(found) != want {
			t.Errorf("after %s: %v, %v; want %d descriptors", after, found, err, want)
		}
	}
}
