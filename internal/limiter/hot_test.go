package limiter_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// hotFixture is a limiter that tracks hot keys.
func hotFixture(t *testing.T, b backend.Store, s limiter.Settings, spec descriptor.DomainSpec) (*fixture, *hotkeys.Tracker) {
	t.Helper()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{spec}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tracker := hotkeys.New(noon, hotkeys.Options{})
	l := limiter.New(limiter.Options{Store: b, Local: memory.New(memory.Options{}), HotKeys: tracker})
	l.Swap(tree, s)
	return &fixture{Limiter: l, t: t, now: noon}, tracker
}

// uses returns sorted lines "rule key denied/used".
func uses(t *hotkeys.Tracker) []string {
	var lines []string
	for _, r := range t.Top(noon, hotkeys.Query{Limit: hotkeys.MaxLimit}).Rules {
		for _, k := range r.Used {
			line := fmt.Sprintf("%s %s %d/%d", r.Rule, k.Key, k.Denied.AtLeast, k.Used.AtLeast)
			if r.Shadow {
				line += " shadow"
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

func TestWhatCountsAsUse(t *testing.T) {
	shadow := func(r *descriptor.Rule) { r.Shadow = true }
	two := func(r *descriptor.Rule) {
		r.Limits = append(r.Limits, descriptor.Limit{Requests: 100, Window: descriptor.Window{Unit: descriptor.Hour}, Name: "hour"})
	}
	spec := descriptor.DomainSpec{Name: "d", Children: []descriptor.NodeSpec{
		perMinute("k", "", 3),
		perMinute("two", "", 3, two),
		perMinute("shadow", "", 3, shadow),
		{Key: "free", Rule: &descriptor.Rule{Unlimited: true}},
	}}
	f, tracker := hotFixture(t, memory.New(memory.Options{}), limiter.Settings{}, spec)
	f.ask(2, "k=a")
	f.ask(0, "k=a")  // a peek
	f.ask(-1, "k=a") // a refund
	f.ask(5, "k=a")  // denied, with as many hits as no window has room for
	f.ask(1, "two=a")
	f.ask(3, "two=a") // the second limit has room for it
	f.ask(4, "shadow=a")
	f.ask(1, "free=a")
	f.ask(1, "nothing=a")
	limited := limiter.Descriptor{Entries: entries("k=a"), HasLimit: true, Limit: limiter.RequestLimit{Requests: 1, Unit: int32(descriptor.Hour)}}
	for range 3 {
		f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{limited}})
	}
	f.decide(&limiter.Request{Domain: "unknown", Descriptors: []limiter.Descriptor{limited}})
	want := []string{
		"d.k d|k=a|f60 4/6",
		"d.shadow d|shadow=a|f60 4/4 shadow",
		"d.two d|two=a|f3600 0/4",
		"d.two d|two=a|f60 3/4",
		"request_limit d|k=a|f3600 2/3",
	}
	if diff := cmp.Diff(want, uses(tracker)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// A reload keeps the counts. The global shadow mode turns every rule into a shadow rule.
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("before", "", 3), perMinute("k", "", 3)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f.Swap(tree, limiter.Settings{Shadow: true})
	f.ask(1, "k=a")
	if got := uses(tracker); got[0] != "d.k d|k=a|f60 5/7 shadow" {
		t.Errorf("after a reload: %q", got)
	}
}

// A denied request of the largest number of hits does not hide the others.
func TestLargeHitsDoNotHideOtherUses(t *testing.T) {
	f, tracker := hotFixture(t, memory.New(memory.Options{}), limiter.Settings{}, descriptor.DomainSpec{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 10)}})
	for range 3000 { // 2^53 hits each would be more than 64 bits
		f.ask(1<<53, "k=a")
	}
	f.ask(7, "k=b")
	if diff := cmp.Diff([]string{"d.k d|k=a|f60 33000/33000", "d.k d|k=b|f60 0/7"}, uses(tracker)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// With all_or_nothing, descriptors that reach the same counter are one use of it.
func TestUseOfAllOrNothing(t *testing.T) {
	spec := descriptor.DomainSpec{Name: "d", DomainSettings: descriptor.DomainSettings{Admission: descriptor.AllOrNothing}, Children: []descriptor.NodeSpec{perMinute("k", "", 3), perMinute("other", "", 0)}}
	f, tracker := hotFixture(t, memory.New(memory.Options{}), limiter.Settings{}, spec)
	f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("k=a")}, {Entries: entries("other=a")}, {Entries: entries("k=a")}}})
	// k=a would have admitted them; the other counter denies.
	if diff := cmp.Diff([]string{"d.k d|k=a|f60 0/2", "d.other d|other=a|f60 1/1"}, uses(tracker)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Hits that the backend could not decide are not uses, unless this replica counted them.
func TestUseWhileTheBackendFails(t *testing.T) {
	onError := func(e descriptor.OnError) func(*descriptor.Rule) {
		return func(r *descriptor.Rule) { r.OnError = e }
	}
	spec := descriptor.DomainSpec{Name: "d", Children: []descriptor.NodeSpec{
		perMinute("deny", "", 3, onError(descriptor.OnErrorDeny)), perMinute("local", "", 1, onError(descriptor.OnErrorLocal)),
	}}
	f, tracker := hotFixture(t, &flaky{memory.New(memory.Options{}), all}, limiter.Settings{}, spec)
	f.ask(1, "deny=a")
	f.ask(1, "local=a")
	f.ask(1, "local=a")
	if diff := cmp.Diff([]string{"d.local d|local=a|f60 1/2"}, uses(tracker)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDecideDoesNotAllocateForHotKeys(t *testing.T) {
	f, tracker := hotFixture(t, memory.New(memory.Options{}), limiter.Settings{}, descriptor.DomainSpec{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 5)}})
	reqs := make([]*limiter.Request, 500) // more than a list can hold
	for i := range reqs {
		reqs[i] = &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(fmt.Sprint("k=", i))}}}
	}
	d := &limiter.Decision{}
	i := 0
	decide := func() {
		if err := f.Decide(context.Background(), noon, reqs[i%len(reqs)], d); err != nil {
			t.Fatal(err)
		}
		i++
	}
	for range 10 * len(reqs) { // creates all counters and makes all of them exceed their limit
		decide()
	}
	if n := testing.AllocsPerRun(2*len(reqs), decide); n > 0 && !racetest.On {
		t.Errorf("%v allocations for a decision on known counters, want none", n)
	}
	if got := tracker.Top(noon, hotkeys.Query{}); got.Rules[0].HitsUsed != uint64(i) || got.Rules[0].HitsDenied != uint64(i-5*len(reqs)) {
		t.Errorf("%d hits, %d denied of %d", got.Rules[0].HitsUsed, got.Rules[0].HitsDenied, i)
	}
}

// BenchmarkDecideObserved measures a decision without observers, with metrics, with hot keys, and with both. It uses
// 65,536 counters in turn: no key is hot, which is the worst case for hot keys. In "denied" every decision is over its
// limit.
func BenchmarkDecideObserved(b *testing.B) {
	reqs := make([]*limiter.Request, 1<<16)
	for i := range reqs {
		reqs[i] = &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(fmt.Sprintf("k=customer-%08d", i*7919%len(reqs)))}}}
	}
	for _, limit := range []struct {
		name     string
		requests uint64
	}{{"admitted", 4_000_000_000}, {"denied", 0}} {
		tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", limit.requests)}}}, descriptor.Options{})
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range []struct {
			name         string
			metrics, hot bool
		}{{"nothing", false, false}, {"metrics", true, false}, {"hot keys", false, true}, {"both", true, true}} {
			for _, parallel := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%s/parallel=%t", limit.name, c.name, parallel), func(b *testing.B) {
					opts := limiter.Options{Store: memory.New(memory.Options{}), NoMetrics: !c.metrics}
					if c.hot {
						opts.HotKeys = hotkeys.New(noon, hotkeys.Options{})
					}
					l := limiter.New(opts)
					l.Swap(tree, limiter.Settings{})
					decide := func(d *limiter.Decision, i int) {
						if err := l.Decide(context.Background(), noon, reqs[i%len(reqs)], d); err != nil {
							b.Error(err)
						}
					}
					d := &limiter.Decision{}
					for i := range reqs {
						decide(d, i)
					}
					b.ReportAllocs()
					b.ResetTimer()
					if parallel {
						b.RunParallel(func(pb *testing.PB) {
							d := &limiter.Decision{}
							for i := 0; pb.Next(); i++ {
								decide(d, i)
							}
						})
						return
					}
					for i := 0; b.Loop(); i++ {
						decide(d, i)
					}
				})
			}
		}
	}
}
