package limiter_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
)

// A counter is listed until its own window ends. A penalty counts nothing, so it does not keep the counter in the list.
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
