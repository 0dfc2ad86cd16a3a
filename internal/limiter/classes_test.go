package limiter_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// shared is a node with a shared limit per minute: a fifth is guaranteed to critical requests, and 30% to paying
// customers.
func shared(requests uint64, change ...func(*descriptor.Rule)) descriptor.NodeSpec {
	node := perMinute("kind", "", requests, append(change, func(r *descriptor.Rule) {
		c := &descriptor.Classes{Key: "kind", Of: []descriptor.Class{{Name: "critical", Percent: 20}, {Name: "paid", Percent: 30}}}
		if err := r.Limits[0].Share(c); err != nil {
			panic(err)
		}
		r.SetClasses(&descriptor.Sharing{Of: []*descriptor.Classes{c}})
	})...)
	node.Condition = true
	return node
}

func TestClasses(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, shared(100))
	f.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.want(f.ask(50, "kind=batch"), limiter.OK, 0)
	s := f.ask(1, "kind=batch")
	if f.want(s, limiter.OverLimit, 0); s.RetryAfter <= 0 || s.RetryAfter > 4*time.Second {
		t.Errorf("a hit more waits %v, want until less is kept for the others", s.RetryAfter)
	}
	f.want(f.ask(0, "kind="), limiter.OK, 0) // no value has the rest, too
	f.want(f.ask(1, "kind=critical"), limiter.OK, 19)
	f.want(f.ask(30, "kind=paid"), limiter.OK, 0)
	f.want(f.ask(20, "kind=critical"), limiter.OverLimit, 19)
	f.now = f.now.Add(30 * time.Second)
	f.want(f.ask(0, "kind=batch"), limiter.OK, 9)
	f.want(f.ask(-30, "kind=paid"), limiter.OK, 39)
	f.want(f.ask(0, "kind=batch"), limiter.OK, 24)
	f.now = f.now.Add(29999 * time.Millisecond)
	f.want(f.ask(49, "kind=batch"), limiter.OK, 0)
}

// Operators see the class of a descriptor, and the hits reserved for the others.
func TestPeekAtClasses(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, shared(100))
	f.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.ask(5, "kind=critical")
	for value, want := range map[string]struct {
		class     string
		kept      int64
		remaining uint64
	}{"critical": {"critical", 30, 65}, "paid": {"paid", 15, 80}, "batch": {"*", 45, 50}} {
		k := f.peek("kind=" + value).List[0]
		if k.Class() != want.class || k.Kept != want.kept || k.Remaining != want.remaining || k.Used != 5 {
			t.Errorf("%s: class %s, %d kept, %d remaining, %d used; want %+v", value, k.Class(), k.Kept, k.Remaining, k.Used, want)
		}
		const words = `100 per minute, fixed window shared by classes, guaranteed by "kind": "critical" 20%, "paid" 30%`
		if k.Words() != words {
			t.Errorf("%s: %s", value, k.Words())
		}
	}
}

// A denial of one class is not cached for another one. A cached denial shows 0 remaining hits for its class.
func TestDenialsOfClasses(t *testing.T) {
	cache := overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})})
	f := newFixtureOn(t, cache, limiter.Settings{}, shared(100))
	f.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.ask(50, "kind=batch")
	f.want(f.ask(1, "kind=batch"), limiter.OverLimit, 0)
	f.want(f.ask(1, "kind=critical"), limiter.OK, 19)
	f.want(f.ask(1, "kind=batch"), limiter.OverLimit, 0)
	if cache.Hits() != 1 {
		t.Errorf("%d denials from the cache, want one", cache.Hits())
	}
	f.want(f.ask(19, "kind=critical"), limiter.OK, 0)
	f.want(f.ask(31, "kind=critical"), limiter.OverLimit, 0)
	f.want(f.ask(30, "kind=paid"), limiter.OK, 0)
}

// Guarantees are parts of the limit that an override sets.
func TestOverridesOfClasses(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, shared(100, func(r *descriptor.Rule) { r.OverrideMax = 1000 }))
	f.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.override("d.kind", "", override.Numbers{Kind: override.Replace, Requests: 200}, "kind=batch")
	f.want(f.ask(100, "kind=batch"), limiter.OK, 0)
	f.want(f.ask(1, "kind=batch"), limiter.OverLimit, 0)
}

// Without all_or_nothing, denied hits of a window count. Those of a class do not: they would use up the guarantees of
// other classes.
func TestDeniedHitsOfClassesDoNotCount(t *testing.T) {
	for _, admission := range []descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing} {
		f := newFixture(t, limiter.Settings{Admission: admission}, shared(100))
		f.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		for range 10 {
			f.want(f.ask(90, "kind=batch"), limiter.OverLimit, 50)
		}
		f.want(f.ask(20, "kind=critical"), limiter.OK, 50)
	}
}

// Descriptors of several classes in one atomic request count as the first of these classes, so together they never take
// more than the limit.
func TestSeveralClassesInOneRequest(t *testing.T) {
	f := newFixture(t, limiter.Settings{Admission: descriptor.AllOrNothing}, shared(100))
	f.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.ask(49, "kind=batch")
	for range 60 {
		f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("kind=critical")}, {Entries: entries("kind=paid")}}})
	}
	if k := f.peek("kind=paid").List[0]; k.Used != 69 || k.Remaining != 31 {
		t.Errorf("%d of 100 are used, and %d are left for a paying customer", k.Used, k.Remaining)
	}
}

func TestMetricsOfClasses(t *testing.T) {
	f := newFallback(t, never, limiter.Settings{}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{shared(100)}})
	f.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.ask(7, "kind=critical")
	f.ask(3, "kind=batch")
	f.ask(60, "kind=other")
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(`# HELP ratelimitd_class_hits_total Hits of each class; *: values without a class.
# TYPE ratelimitd_class_hits_total counter
ratelimitd_class_hits_total{class="*",domain="d",limit="",result="admitted",rule="kind"} 3
ratelimitd_class_hits_total{class="*",domain="d",limit="",result="denied",rule="kind"} 60
ratelimitd_class_hits_total{class="critical",domain="d",limit="",result="admitted",rule="kind"} 7
ratelimitd_class_hits_total{class="critical",domain="d",limit="",result="denied",rule="kind"} 0
ratelimitd_class_hits_total{class="paid",domain="d",limit="",result="admitted",rule="kind"} 0
ratelimitd_class_hits_total{class="paid",domain="d",limit="",result="denied",rule="kind"} 0
`), "ratelimitd_class_hits_total"); err != nil {
		t.Error(err)
	}
}
