package limiter_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Refused is called once for each request that is refused in the end, at once or later, and not while the server is in shadow mode.
func TestRefusedIsCalledForRefusals(t *testing.T) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 2)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		shadow, later bool
		want          int
	}{"at once": {want: 3}, "later": {later: true, want: 3}, "shadow": {shadow: true}} {
		calls := 0
		o := limiter.Options{Store: memory.New(memory.Options{}), Refused: func(now time.Time, req *limiter.Request, d *limiter.Decision) {
			if calls++; !now.Equal(noon) || req.Domain != "d" || d.Code != limiter.OverLimit {
				t.Errorf("%s: %s %s %s", name, now, req.Domain, d.Code)
			}
		}}
		if c.later {
			o.Store = later{o.Store}
		}
		l := limiter.New(o)
		l.Swap(tree, limiter.Settings{Shadow: c.shadow})
		for range 5 {
			if err := l.Decide(t.Context(), noon, request(1, "k=a"), new(limiter.Decision)); err != nil {
				t.Fatal(err)
			}
		}
		if calls != c.want {
			t.Errorf("%s: called %d times, want %d", name, calls, c.want)
		}
	}
}
