package simulate

import (
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// minuteRule is a rule with a limit of requests a minute.
func minuteRule(t *testing.T, limit descriptor.Limit) *descriptor.Rule {
	t.Helper()
	r := &descriptor.Rule{Path: "edge.user", Limits: []descriptor.Limit{limit}}
	l := &r.Limits[0]
	l.Window.Unit = descriptor.Minute
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	return r
}

func ask(c *comparison, r *descriptor.Rule, at time.Duration, caller string) {
	c.add(time.Unix(1_700_000_000, 0).Add(at), []backend.Take{{Key: []byte(caller), Limit: &r.Limits[0], Rule: r, Hits: 1}})
}

// A comparison that has no room for all counters goes on with a sample of them, in bounded memory. The sample has early and late
// callers, and its share of differences is about that of all.
func TestComparisonIsBounded(t *testing.T) {
	const callers = 10_000
	rule := minuteRule(t, descriptor.Limit{Requests: 2})
	all, bounded := newComparison(1<<30), newComparison(2<<20)
	for _, c := range []*comparison{all, bounded} {
		for i := range 4 * callers { // two late in a minute, and two early in the next, in which a fixed window admits them all
			at := 29 * time.Second
			if i >= 2*callers {
				at = 31 * time.Second
			}
			ask(c, rule, at+10*time.Second, fmt.Sprint("caller", i%callers))
			if c.bytes > c.most {
				t.Fatalf("%d bytes after %d requests", c.bytes, i)
			}
		}
	}
	most, few := all.reported(), bounded.reported()
	if most.Decisions != 4*callers || most.LeftOut != 0 || most.Algorithms[asWritten].Admitted != 2*callers {
		t.Errorf("%+v", most)
	}
	if few.Decisions+few.LeftOut != 4*callers || bounded.level == 0 {
		t.Errorf("%+v, level %d", few, bounded.level)
	}
	if late := few.Algorithms[asWritten].Admitted; late < 250 || late*5 > few.Decisions*3 {
		t.Errorf("%d of %d decisions differ", late, few.Decisions)
	}
	sum := 0
	for _, k := range bounded.counters {
		sum += k.bytes()
		if !bounded.sampled(k.hash) {
			t.Errorf("%s is not in the sample", k.key)
		}
	}
	if sum != bounded.bytes {
		t.Errorf("%d bytes are counted, the counters have %d", bounded.bytes, sum)
	}
}

// A counter that takes a quarter of the memory is no longer compared; the others are.
func TestComparisonDropsOneLargeCounter(t *testing.T) {
	rule := minuteRule(t, descriptor.Limit{Requests: 1_000_000})
	c := newComparison(4 << 20)
	for i := range 100_000 {
		ask(c, rule, time.Duration(i)*time.Microsecond, "large")
		if i%1000 == 0 {
			ask(c, rule, time.Duration(i)*time.Microsecond, "small")
		}
	}
	if c.level != 0 || c.left < 50_000 || c.bytes > c.most/4 || len(c.counters["small"].log) != 100 || c.counters["large"].log != nil {
		t.Errorf("level %d, %d decisions left out, %d bytes", c.level, c.left, c.bytes)
	}
}

// Counters that have expired make room, however many there were.
func TestComparisonForgetsExpiredCounters(t *testing.T) {
	rule := minuteRule(t, descriptor.Limit{Requests: 5})
	c := newComparison(2 << 20)
	const callers = 20_000
	for i := range callers {
		ask(c, rule, time.Duration(i)*time.Second, fmt.Sprint("caller", i))
	}
	if r := c.reported(); r.Decisions != callers || r.LeftOut != 0 || c.level != 0 {
		t.Errorf("%+v, level %d", r, c.level)
	}
}
