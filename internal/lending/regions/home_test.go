package regions_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
)

func TestHomeOf(t *testing.T) {
	three := []string{"ap", "eu", "us"}
	n := map[string]int{}
	moved := 0
	for i := range 3000 {
		key := fmt.Appendf(nil, "api|customer=%d|f60", i)
		home := regions.HomeOf(key, three)
		n[home]++
		other := slices.Clone(three)
		slices.Reverse(other)
		if again := regions.HomeOf(key, other); again != home {
			t.Fatalf("%s: %s, and %s by the same list in another order", key, home, again)
		}
		if again := regions.HomeOf(fmt.Appendf(nil, "api|customer=%d|t3600", i), three); again != home {
			t.Fatalf("%s: %s, and %s for another limit of the rule", key, home, again)
		}
		switch added := regions.HomeOf(key, append(other, "sa")); added {
		case home:
		case "sa":
			moved++
		default:
			t.Fatalf("%s moved from %s to %s when sa was added", key, home, added)
		}
	}
	for _, name := range three {
		if n[name] < 900 || n[name] > 1100 {
			t.Errorf("%s is the home of %d of 3000 counters, want about 1000", name, n[name])
		}
	}
	if moved < 650 || moved > 850 {
		t.Errorf("%d of 3000 counters moved to the new region, want about 750", moved)
	}
	if home := regions.HomeOf([]byte("k"), nil); home != "" {
		t.Errorf("home %q without regions", home)
	}
}
