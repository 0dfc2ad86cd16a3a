package limiter

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// A huge request that this replica counts does not hold its memory after the decision.
func TestHugeRequestsAreNotKept(t *testing.T) {
	for takes, kept := range map[int]bool{10: true, 10 * maxKept: false} {
		var w work
		for i := range takes {
			w.countedHere.Add(i, backend.Take{})
			w.subjects, w.charges = append(w.subjects, subject{}), append(w.charges, charge{})
		}
		w.reset()
		if n := len(w.countedHere.Takes) + len(w.subjects) + len(w.charges); n != 0 {
			t.Errorf("%d elements are left of %d takes", n, takes)
		}
		for what, room := range map[string]int{"takes": cap(w.countedHere.Takes), "subjects": cap(w.subjects), "charges": cap(w.charges)} {
			if room > 0 != kept {
				t.Errorf("of %d takes: room for %d %s is kept", takes, room, what)
			}
		}
	}
}
