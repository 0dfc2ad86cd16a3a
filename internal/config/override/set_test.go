package override

import (
	"fmt"
	"iter"
	"math"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func identity(rule, limit string, pairs ...string) Identity {
	i := Identity{Domain: "d", Rule: rule, Limit: limit}
	for p := 0; p+1 < len(pairs); p += 2 {
		i.Entries = append(i.Entries, descriptor.Entry{Key: pairs[p], Value: pairs[p+1]})
	}
	return i
}

// A set holds the result of all changes before it, in any order, and earlier sets stay unchanged.
func TestSetHoldsWhatWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SampledFrom([]string{"", "a", "b", "ab", "a|b", "a=b", "\x01a", "\xff"})
		draw := rapid.Custom(func(t *rapid.T) Identity {
			return identity(values.Draw(t, "rule"), values.Draw(t, "limit"), "k", values.Draw(t, "value"), values.Draw(t, "key"), fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "n")))
		})
		set, model := &Set{}, map[string]Numbers{}
		identities := map[string]Identity{}
		for step := range rapid.IntRange(1, 20).Draw(t, "steps") {
			var changes []Change
			for range rapid.IntRange(0, 40).Draw(t, "changes") {
				c := Change{Identity: draw.Draw(t, "identity")}
				key := c.Identity.String()
				identities[key] = c.Identity
				if rapid.Bool().Draw(t, "write") {
					c.Numbers = Numbers{Kind: Replace, Requests: rapid.Uint64Max(descriptor.MaxRequests).Draw(t, "requests")}
					model[key] = c.Numbers
				} else {
					delete(model, key)
				}
				changes = append(changes, c)
			}
			before, had := set, set.Len()
			set = set.With(int64(step), changes)
			if before.Len() != had || count(before) != had {
				t.Fatalf("a change to a set with %d overrides left it with %d", had, count(before))
			}
			if set.Len() != len(model) || count(set) != len(model) {
				t.Fatalf("%d overrides, of which Each yields %d; want %d", set.Len(), count(set), len(model))
			}
			same := NewSet(0, func(yield func(*Identity, Numbers) bool) {
				for key, n := range model {
					if i := identities[key]; !yield(&i, n) {
						return
					}
				}
			})
			if set.Sum() != same.Sum() {
				t.Fatalf("the sum of %d overrides is %d, and %d of another set of the same", set.Len(), set.Sum(), same.Sum())
			}
			for key, i := range identities {
				n, _ := set.Find(nil, &descriptor.Rule{Domain: i.Domain, Path: i.Rule}, i.Limit, i.Entries, 0)
				if want := model[key]; n != want {
					t.Fatalf("%s: got %v, want %v", key, n, want)
				}
				if n.Kind != 0 && i.Limit != "" && (!set.Named() || !same.Named()) {
					t.Fatalf("%s: it names a limit, and the set does not know that", key)
				}
				if got := set.Get(&i); (got == nil) != (n.Kind == 0) || got != nil && *got != n {
					t.Fatalf("%s: Get returns %v, want %v", key, got, n)
				}
			}
		}
	})
}

func count(s *Set) (n int) {
	for i, numbers := range s.Each() {
		found, _ := s.Find(nil, &descriptor.Rule{Domain: i.Domain, Path: i.Rule}, i.Limit, i.Entries, 0)
		if found != numbers {
			return -1
		}
		n++
	}
	return n
}

func TestOverrideAppliesWithinItsTimes(t *testing.T) {
	i := identity("d.k", "", "k", "v")
	set := (&Set{}).With(1, []Change{{i, Numbers{Kind: Blocked, NotBefore: 100, ExpiresAt: 200}}})
	for now, want := range map[int64]bool{99: false, 100: true, 199: true, 200: false} {
		if n, _ := set.Find(nil, &descriptor.Rule{Domain: "d", Path: "d.k"}, "", i.Entries, now); (n.Kind != 0) != want {
			t.Errorf("at %d: %v, want %v", now, n, want)
		}
	}
}

// many yields n overrides of customers, as a large fleet has them.
func many(n int) iter.Seq2[*Identity, Numbers] {
	return func(yield func(*Identity, Numbers) bool) {
		for k := range n {
			i := identity("api.tenant.endpoint", "", "tenant", fmt.Sprintf("customer-%08d", k), "endpoint", "/v1/messages")
			if !yield(&i, Numbers{Kind: Replace, Requests: uint64(k), ExpiresAt: 1 << 40}) {
				return
			}
		}
	}
}

func TestOverrideUsesAtMost300Bytes(t *testing.T) {
	const n = 100_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	set := NewSet(1, many(n))
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
	if set.Len() != n || each > 300 || each < 100 {
		t.Errorf("%d overrides use %d bytes each", set.Len(), each)
	}
	if own := set.Bytes() / n; int64(own) < each*3/4 || int64(own) > each*5/4 {
		t.Errorf("Bytes says %d each, and they use %d", own, each)
	}
}

func TestFindDoesNotAllocate(t *testing.T) {
	set := NewSet(1, many(1000))
	rule := &descriptor.Rule{Domain: "d", Path: "api.tenant.endpoint"}
	found := identity("", "", "tenant", "customer-00000007", "endpoint", "/v1/messages").Entries
	missing := identity("", "", "tenant", "nobody", "endpoint", "/v1/messages").Entries
	var scratch []byte
	if n := testing.AllocsPerRun(100, func() {
		var a, b Numbers
		if a, scratch = set.Find(scratch, rule, "", found, 1); a.Requests != 7 {
			t.Error("not found")
		}
		if b, scratch = set.Find(scratch, rule, "", missing, 1); b.Kind != 0 {
			t.Error("found")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFind(b *testing.B) {
	set := NewSet(1, many(1_000_000))
	rule := &descriptor.Rule{Domain: "d", Path: "api.tenant.endpoint"}
	var callers [1024][]descriptor.Entry
	for k := range callers {
		callers[k] = identity("", "", "tenant", fmt.Sprintf("customer-%08d", k*977), "endpoint", "/v1/messages").Entries
	}
	var scratch []byte
	var n Numbers
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if n, scratch = set.Find(scratch, rule, "", callers[i%len(callers)], 1); n.Kind == 0 {
			b.Fatal("not found")
		}
	}
	b.ReportMetric(float64(set.Bytes())/float64(set.Len()), "bytes/override")
}

func BenchmarkChangeOne(b *testing.B) {
	set := NewSet(1, many(1_000_000))
	change := []Change{{identity("api.tenant.endpoint", "", "tenant", "customer-00000007", "endpoint", "/v1/messages"), Numbers{Kind: Blocked}}}
	for b.Loop() {
		set = set.With(2, change)
	}
}

func BenchmarkNewSet(b *testing.B) {
	for b.Loop() {
		NewSet(1, many(1_000_000))
	}
}

// The sum differs if anything does that decisions read.
func TestSumOfOverrides(t *testing.T) {
	sums := map[uint64]int{}
	for i, c := range []Change{
		{}, // none
		{identity("r", "", "k", "a"), Numbers{Kind: Replace, Requests: 5}},
		{identity("r", "", "k", "b"), Numbers{Kind: Replace, Requests: 5}},
		{identity("r", "l", "k", "a"), Numbers{Kind: Replace, Requests: 5}},
		{identity("r", "", "k", "a"), Numbers{Kind: Replace, Requests: 6}},
		{identity("r", "", "k", "a"), Numbers{Kind: Replace, Requests: 5, Burst: 5}},
		{identity("r", "", "k", "a"), Numbers{Kind: Replace, Requests: 5, NotBefore: 5}},
		{identity("r", "", "k", "a"), Numbers{Kind: Replace, Requests: 5, ExpiresAt: 5}},
		{identity("r", "", "k", "a"), Numbers{Kind: Blocked}},
		{identity("r", "", "k", "a"), Numbers{Kind: Unlimited}},
	} {
		set := &Set{}
		if c.Numbers.Kind != 0 {
			set = set.With(int64(i), []Change{c})
		}
		if other, ok := sums[set.Sum()]; ok {
			t.Errorf("%+v has the sum of number %d", c, other)
		}
		sums[set.Sum()] = i
	}
	if (*Set)(nil).Sum() != 0 {
		t.Error("no overrides have a sum")
	}
}

// A span is a time in which no override starts or ends.
func TestSpanOfOverrides(t *testing.T) {
	set := (&Set{}).With(1, []Change{
		{identity("r", "", "k", "a"), Numbers{Kind: Blocked, NotBefore: 10, ExpiresAt: 20}},
		{identity("r", "", "k", "b"), Numbers{Kind: Blocked, ExpiresAt: 15}},
		{identity("r", "", "k", "c"), Numbers{Kind: Blocked}},
	})
	const first, last = math.MinInt64, math.MaxInt64
	for _, c := range [][3]int64{{9, first, 10}, {10, 10, 15}, {14, 10, 15}, {15, 15, 20}, {19, 15, 20}, {20, 20, last}, {21, 20, last}} {
		if from, until := set.Span(c[0]); from != c[1] || until != c[2] {
			t.Errorf("around %d: %d to %d", c[0], from, until)
		}
	}
	if from, until := (*Set)(nil).Span(5); from != first || until != last {
		t.Errorf("of none: %d to %d", from, until)
	}
}
