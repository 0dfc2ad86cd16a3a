package limiter_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
)

// A counter is listed until its window ends. A penalty counts nothing, so it does not keep the counter in the list.
func TestUsageDuringAPenalty(t *testing.T) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		perMinute("k", "", 2, penalty(10*time.Minute), func(r *descriptor.Rule) { r.Usage = true }),
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index := usage.New(usage.Options{Store: new(usage.Memory)})
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

// A counter that several rules share is listed with each descriptor that used it: the first one has the numbers of
// another plan.
func TestUsageAfterAChangeOfPlan(t *testing.T) {
	var plans []descriptor.NodeSpec
	for value, requests := range map[string]uint64{"free": 10, "pro": 1000} {
		plans = append(plans, descriptor.NodeSpec{Key: "plan", Value: value, Condition: true, Children: []descriptor.NodeSpec{
			perMinute("customer", "", requests, func(r *descriptor.Rule) { r.Usage = true }),
		}})
	}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: plans}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index := usage.New(usage.Options{Store: new(usage.Memory)})
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Usage: index})
	l.Swap(tree, limiter.Settings{})
	for _, plan := range []string{"plan=free", "plan=pro"} {
		for range 305 {
			if err := l.Decide(t.Context(), noon, &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(plan, "customer=a")}}}, &limiter.Decision{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	index.Flush(t.Context(), noon)
	found, _, err := index.List(t.Context(), noon, "d", [][]descriptor.Entry{entries("customer=a")}, 0, 10)
	if err != nil || len(found) != 2 {
		t.Fatalf("%v, %v; want both plans", found, err)
	}
	left := make(map[string]uint64)
	for _, pairs := range found {
		c, err := l.Peek(t.Context(), noon, "d", &limiter.Descriptor{Entries: pairs})
		if err != nil {
			t.Fatal(err)
		}
		left[pairs[0].Value] = c.List[0].Remaining
	}
	if left["free"] != 0 || left["pro"] == 0 {
		t.Errorf("left by plan: %v", left)
	}
}
