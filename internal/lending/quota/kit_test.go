package quota

import (
	"math"
	"testing"
	"time"
)

var start = time.Unix(1_800_000_000, 0)

func after(seconds float64) time.Time {
	return start.Add(time.Duration(math.Round(seconds * float64(time.Second))))
}

// hundred is a limit of 100 a second. It is divided in steps of a tenth of a request a second.
var hundred = Rate{PerSecond: 100, Burst: 100, Interval: 10 * time.Second}

// kit is a bucket whose messages arrive immediately.
type kit struct {
	*testing.T
	b *Bucket
}

func newKit(t *testing.T, r Rate, saved float64) kit {
	t.Helper()
	return kit{t, NewBucket(start, r, saved)}
}

// newSharedKit is a kit for a replica that has half of a limit of 100 a second.
func newSharedKit(t *testing.T, saved float64) kit {
	t.Helper()
	k := kit{t, NewSharedBucket(start, hundred)}
	k.b.SetShare(start, Share{Rate: 50, Burst: 50, FairRate: 50, FairBurst: 50, Saved: saved, Replicas: 2})
	return k
}

// plan runs a plan and sends it. It returns the number of messages.
func (k kit) plan(seconds float64) int {
	k.Helper()
	told := k.b.Plan(after(seconds))
	for i, s := range told {
		for _, other := range told[:i] {
			if s == other {
				k.Errorf("after %gs one subscriber is told twice", seconds)
			}
		}
		s.Sent(after(seconds))
	}
	return len(told)
}

// holds checks the rate and the burst of a subscriber's assignment. Both are 0 for a subscriber that denies everything.
func (k kit) holds(s *Subscriber, rate float64, tokens uint32) {
	k.Helper()
	if h := s.Held; h.Kind == None || !near(h.Rate(), rate) || h.MaxTokens != tokens || h.TTL != 30*time.Second {
		k.Errorf("a subscriber holds %+v, want %g per second and %d at once for 30s", h, rate, tokens)
	}
}

// out checks the rate and tokens that clients may use in the worst case, and the saved tokens.
func (k kit) out(rate, burst, saved float64) {
	k.Helper()
	if r, n := k.b.out(); !near(r, rate) || !near(n, burst) || !near(k.b.saved, saved) {
		k.Errorf("%g per second and %g tokens are handed out and %g saved, want %g, %g and %g", r, n, k.b.saved, rate, burst, saved)
	}
}

func (k kit) is(what string, got, want float64) {
	k.Helper()
	if !near(got, want) {
		k.Errorf("%s is %g, want %g", what, got, want)
	}
}

func (k kit) true(what string, got bool) {
	k.Helper()
	if !got {
		k.Errorf("not so: %s", what)
	}
}

func near(x, y float64) bool { return math.Abs(x-y) <= 1e-9*(1+math.Abs(y)) }
