package backendtest

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// SoakReservations sends that many random steps to a store: takes, refunds, reservations, reports, commits, cancels,
// extensions, and times that pass. It compares each answer, and the content of each counter after each step, with plain
// arithmetic: nothing is charged twice or lost, and used and reserved hits are never more than the limit. A tenth of
// the steps go to counters whose clock is set back and ahead; each such step may cost one window. The store may lose
// answers, with ErrLost: then each later answer must be right for one of the ways in which the lost steps took place or
// did not.
func SoakReservations(t *testing.T, s backend.Starter, steps int64, seed uint64) {
	t.Logf("seed %d", seed)
	c := randomChance{t, rand.New(rand.NewPCG(seed, 0))}
	done, took, didNot := int64(0), 0, 0
	for done < steps && !t.Failed() {
		b := newBank(c, s)
		b.run(900)
		took, didNot = took+b.took, didNot+b.didNot
		f := newFlood(c, s, soakedLimit(c))
		f.stepped = true
		f.run(b.step / 9)
		done += b.step + b.step/9
	}
	t.Logf("%d steps; of those whose answer was lost, %d took place and %d did not, as later answers show", done, took,
		didNot)
}

// soakedLimit returns one of the limits of a minute.
func soakedLimit(c chance) *descriptor.Limit {
	limits := PerMinute()
	maps.DeleteFunc(limits, func(_ string, l *descriptor.Limit) bool { return !reservable(l) || l.FirstHit })
	names := slices.Sorted(maps.Keys(limits))
	return limits[names[c.below(int64(len(names)), "limit")]]
}
