package region

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Grant is permits that the home has charged to a counter, and that one region may use. Both keep a record of it: the account of what
// it holds, the home's counter of what it has heard.
type Grant struct {
	Incarnation uint64 // of the account
	Number      uint64 // of the question that it answers

	Permits  int64
	Used     int64 // of them
	Returned int64 // of them: the region no longer has them

	Charged int64 // when, by the home's clock
	Ends    int64 // of the window or the part of it that it is charged to, by the home's clock

	// Expires is when the region may no longer use it. In an account this is a time of that region's Redis, and comes first.
	Expires int64
}

// rest is how many permits are neither used nor returned.
func (g *Grant) rest() int64 { return g.Permits - g.Used - g.Returned }

// giveUp returns what is left.
func (g *Grant) giveUp() { g.Returned += g.rest() }

// is reports whether two records are of the same grant.
func (g *Grant) is(other *Grant) bool {
	return g.Incarnation == other.Incarnation && g.Number == other.Number
}

const (
	// longestLife is how long a region may use a grant at most. Permits that a region does not use cannot be used by others until it
	// returns them, or, if it is lost, until the window ends.
	longestLife = 30 * second

	pastLife = longestLife + longestLife/drift + 1 // as long, on a clock that may run faster

	// logPart: grants of a log live for at most 1/logPart of its window. Hits stay in the log longer by as much, so that is how much
	// of the rate is lost.
	logPart = 25

	// heldPart: all regions together hold at most 1/heldPart of a limit.
	heldPart = 4

	// leastForEach is the least limit for each region that is worth dividing.
	leastForEach = 40

	// shortestLife: a window, or a part of one, that is shorter would end before grants of it have arrived and were used.
	shortestLife = 4 * second
)

// terms are what a limit allows grants to do.
type terms struct {
	life  int64            // of a grant
	limit descriptor.Limit // that the home counts under
}

// termsOf returns the terms of a limit, or false if permits of it cannot be granted.
func termsOf(l *descriptor.Limit) (terms, bool) {
	t := terms{life: longestLife, limit: *l}
	within := l.Window.Length()
	switch p := backend.PermitsOf(&backend.Take{Limit: l}); p.Kind {
	case backend.PermitsOfWindow:
		if p.Within > 0 {
			within = p.Within
		}
		t.life = min(t.life, within.Microseconds())
	case backend.PermitsOfLog:
		// Used within a window is charged within a window and a grant's life. So hits stay that much longer. All takes of
		// this counter are counted under the longer window.
		a := &t.limit.Arithmetic
		t.life = min(t.life, a.Length/logPart)
		a.Length += t.life
		if 2*a.Length/a.Quantum >= 1<<32 { // a log keeps the hits of two windows as 32-bit offsets
			return terms{}, false
		}
	default:
		return terms{}, false
	}
	return t, true
}

// Grantable reports whether a limit can be divided among a number of regions: permits of it can be taken in advance, it is large
// enough for all, and its window is long enough for a grant to arrive and be used.
func Grantable(l *descriptor.Limit, regions int) bool {
	t, _ := termsOf(l) // without any, a grant's life is 0
	return t.life >= shortestLife && l.Capacity() >= uint64(leastForEach*regions)
}

func micros(d time.Duration) int64 { return d.Microseconds() }
