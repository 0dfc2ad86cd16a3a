package descriptor

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

func perMinute(requests uint64) *Rule {
	return &Rule{Limits: []Limit{{Requests: requests, Window: Window{Unit: Minute}}}}
}

func TestCompileFillsInRules(t *testing.T) {
	tree, err := Compile([]DomainSpec{
		{Name: "a", Children: []NodeSpec{
			{Key: "k", Value: "v*", ShareThreshold: true, ValueToMetric: true, Rule: perMinute(1), Children: []NodeSpec{
				{Key: "l", Rule: perMinute(2)},
			}},
			{Key: "k", Rule: perMinute(3)},
			{Key: "k", Kind: MatchValues, Values: []string{"x", "y"}, ShareThreshold: true, Rule: perMinute(5)},
			{Key: "k", Kind: MatchCIDR, Value: "10.0.0.0/8", Rule: perMinute(6)},
			{Key: "k", Kind: MatchRegex, Value: "z.+", ShareThreshold: true, Rule: perMinute(7)},
		}},
		{Name: "b", Children: []NodeSpec{
			{Key: "without a rule", Children: []NodeSpec{{Key: "l", Value: "w", Rule: perMinute(4)}}},
		}},
		{Name: "empty"},
	}, Options{})

	if err != nil {
		t.Fatal(err)
	}
	type filled struct {
		Path    string
		Levels  []Level
		Metrics *MetricLevels
		Shared  []string
	}
	want := []filled{
		{"a.k_v*", []Level{{"k", "v*", MatchWildcard}}, &MetricLevels{true}, []string{"~v*"}},
		{"a.k_v*.l", []Level{{"k", "v*", MatchWildcard}, {"l", "", MatchAny}}, &MetricLevels{true, false}, []string{"~v*", ""}},
		{"a.k", []Level{{"k", "", MatchAny}}, nil, nil},
		{"a.k_x,y", []Level{{"k", "x,y", MatchValues}}, nil, []string{"~=x=y"}},
		{"a.k_10.0.0.0/8", []Level{{"k", "10.0.0.0/8", MatchCIDR}}, nil, []string{""}},
		{"a.k_z.+", []Level{{"k", "z.+", MatchRegex}}, nil, []string{"~~z.+"}},
		{"b.without a rule.l_w", []Level{{"without a rule", "", MatchAny}, {"l", "w", MatchExact}}, nil, nil},
	}
	got := make([]filled, len(tree.Rules))
	for i, r := range tree.Rules {
		var texts []string
		if r.shared != nil {
			for _, s := range r.shared.levels {
				texts = append(texts, s.text)
			}
		}
		got[i] = filled{r.Path, r.Levels, r.MetricValues, texts}
		if int(r.Index) != i {
			t.Errorf("the rule at %d has index %d", i, r.Index)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("rules differ (-want +got):\n", diff)
	}
	if tree.Domains() != 3 || tree.Domain("a").Rules != 6 || tree.Domain("b").Rules != 1 || tree.Domain("empty").Rules != 0 {
		t.Errorf("%d domains with %d, %d and %d rules; want 3 with 6, 1 and 0", tree.Domains(), tree.Domain("a").Rules, tree.Domain("b").Rules, tree.Domain("empty").Rules)
	}
	if tree.Domain("c") != nil {
		t.Error("a domain that no rule names was found")
	}
}

func TestCompileRejects(t *testing.T) {
	for _, c := range []struct {
		name    string
		domains []DomainSpec
		want    string
	}{
		{"no domain name", []DomainSpec{{Position: Position{File: "f.yaml"}}}, "f.yaml"},
		{"a domain twice", []DomainSpec{{Name: "d"}, {Name: "d"}}, `"d" twice`},
		{"no key", []DomainSpec{{Name: "d", Children: []NodeSpec{{Value: "v"}}}}, "without a key"},
		{"a key alone twice", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k"}, {Key: "k"}}}}, `"k"`},
		{"a value twice", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Value: "v"}, {Key: "k", Value: "v"}}}}, `"v" twice`},
		{"a wildcard twice", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Value: "v*"}, {Key: "k", Value: "v*"}}}}, `"v*" twice`},
		{"a list's value twice", []DomainSpec{{Name: "d", Children: []NodeSpec{
			{Key: "k", Kind: MatchValues, Values: []string{"a", "b"}}, {Key: "k", Value: "b"}, {Key: "k", Kind: MatchValues, Values: []string{"b"}}}}}, `"b" in two lists`},
		{"an empty value in a list", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Kind: MatchValues, Values: []string{""}}}}}, "empty value"},
		{"an expression twice", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Kind: MatchRegex, Value: "a+"}, {Key: "k", Kind: MatchRegex, Value: "a+"}}}}, `"a+" twice`},
		{"a bad expression", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Kind: MatchRegex, Value: "(a"}}}}, "missing closing )"},
		{"a network twice", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Kind: MatchCIDR, Value: "10.0.0.0/8"}, {Key: "k", Kind: MatchCIDR, Value: "::ffff:10.0.0.0/104"}}}}, "twice"},
		{"a bad network", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Kind: MatchCIDR, Value: "10/8"}}}}, "no network"},
		{"two limits that are one counter", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Rule: &Rule{Limits: []Limit{
			{Requests: 1, Window: Window{Unit: Hour}}, {Requests: 2, Window: Window{Unit: Minute, Multiplier: 60}}}}}}}}, "one algorithm and window"},
		{"twice below", []DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "j", Children: []NodeSpec{{Key: "k"}, {Key: "k"}}}}}}, `"k"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Compile(c.domains, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %s", err, c.want)
			}
		})
	}
}

// A node finds its children however many keys it has: few are compared, many are looked up.
func TestMatchAmongManyKeys(t *testing.T) {
	for n := 1; n <= 40; n++ {
		spec := DomainSpec{Name: "d"}
		for i := range n {
			spec.Children = append(spec.Children,
				NodeSpec{Key: "key" + strconv.Itoa(i), Value: "v", Rule: perMinute(uint64(i))},
				NodeSpec{Key: "key" + strconv.Itoa(i), Rule: perMinute(uint64(1000 + i))})
		}
		tree, err := Compile([]DomainSpec{spec}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		d := tree.Domain("d")
		for i := range n {
			key := "key" + strconv.Itoa(i)
			exact := d.Match([]Entry{{key, "v"}})
			alone := d.Match([]Entry{{key, "w"}})
			if exact == nil || exact.Limits[0].Requests != uint64(i) || alone == nil || alone.Limits[0].Requests != uint64(1000+i) {
				t.Fatalf("of %d keys, %s matched %v and %v", n, key, exact, alone)
			}
		}
		if d.Match([]Entry{{"key", "v"}}) != nil || d.Match([]Entry{{"key" + strconv.Itoa(n), "v"}}) != nil {
			t.Fatalf("of %d keys, one that is not there matched", n)
		}
	}
}

// Two edges may have one hash: a slot is an edge's only if its parent, key and value are.
func TestFindComparesWhatItFinds(t *testing.T) {
	e := newEdges(defaultPatternBytes)
	if err := e.put(3, &NodeSpec{Key: "key", Value: "value"}, 7); err != nil {
		t.Fatal(err)
	}
	hash := e.hashValue(e.hashKey(3, "key"), "value")
	if s := e.find(hash, 3, "key", "value"); s == nil || s.child != 7 {
		t.Fatalf("found %v, want child 7", s)
	}
	for _, c := range []struct {
		parent     node
		key, value string
	}{{4, "key", "value"}, {3, "kez", "value"}, {3, "key", "valuf"}, {3, "key", ""}} {
		if s := e.find(hash, c.parent, c.key, c.value); s != nil {
			t.Errorf("an edge of another identity was found for %+v", c)
		}
	}
}

// twoLevels is a domain of outer × inner rules, each with two exact values.
func twoLevels(tb testing.TB, outer, inner int) (*Domain, [][]Entry) {
	tb.Helper()
	spec := DomainSpec{Name: "d"}
	var paths [][]Entry
	for i := range outer {
		tenant := fmt.Sprintf("tenant-%06d", i)
		n := NodeSpec{Key: "tenant", Value: tenant}
		for j := range inner {
			route := fmt.Sprintf("/api/v1/route-%06d", j)
			n.Children = append(n.Children, NodeSpec{Key: "path", Value: route, Rule: perMinute(uint64(i*inner + j))})
			// Values come off the wire: never the very bytes that the rule holds.
			paths = append(paths, []Entry{{"tenant", strings.Clone(tenant)}, {"path", strings.Clone(route)}})
		}
		spec.Children = append(spec.Children, n)
	}
	tree, err := Compile([]DomainSpec{spec}, Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return tree.Domain("d"), paths
}

func TestMatchAllocatesNothing(t *testing.T) {
	d, paths := twoLevels(t, 100, 100)
	i := 0
	allocs := testing.AllocsPerRun(1000, func() {
		if d.Match(paths[i]) == nil {
			t.Fatal("no rule")
		}
		i = (i + 37) % len(paths)
	})
	if allocs != 0 {
		t.Errorf("a match allocates %v times", allocs)
	}
}

// Shapes of a tree of 100,000 rules: outer × inner.
var shapes = [][2]int{{100_000, 1}, {1000, 100}, {100, 1000}, {1, 100_000}}

func BenchmarkMatch(b *testing.B) {
	for _, shape := range shapes {
		d, paths := twoLevels(b, shape[0], shape[1])
		name := fmt.Sprintf("%dx%d", shape[0], shape[1])
		b.Run(name+"/hot", func(b *testing.B) {
			b.ReportAllocs()
			hot := paths[len(paths)/2]
			for b.Loop() {
				d.Match(hot)
			}
		})
		// The request is made anew in one place, as a decoder's pooled entries would be, so that cache misses are those of
		// the tree, not of the list of requests.
		random := make([]int32, 1<<16)
		for i := range random {
			random[i] = int32(rand.IntN(len(paths)))
		}
		b.Run(name+"/random", func(b *testing.B) {
			b.ReportAllocs()
			entries := make([]Entry, 2)
			var tenant, route [32]byte
			i := 0
			for b.Loop() {
				at := random[i&(len(random)-1)]
				entries[0] = Entry{"tenant", number(&tenant, "tenant-000000", int(at)/shape[1])}
				entries[1] = Entry{"path", number(&route, "/api/v1/route-000000", int(at)%shape[1])}
				if r := d.Match(entries); r == nil {
					b.Fatal("no rule")
				}
				i++
			}
		})
	}
}

// number writes n over the zeros at the end of form, into buf, without allocating.
func number(buf *[32]byte, form string, n int) string {
	b := append(buf[:0], form...)
	for i := len(b) - 1; n > 0; i-- {
		b[i] += byte(n % 10)
		n /= 10
	}
	return unsafe.String(&b[0], len(b))
}

// A value longer than patterns see is matched by its start, as far as the options allow.
func TestPatternBytes(t *testing.T) {
	login := NodeSpec{Key: "path", Value: `/login/[a-z]*\.do`, Kind: MatchRegex, Rule: perMinute(1)}
	specs := []DomainSpec{{Name: "d", Copy: true, Children: []NodeSpec{login, {Key: "path", Rule: perMinute(1)}}}}
	long := []Entry{{Key: "path", Value: "/login/" + strings.Repeat("a", 93) + "?"}} // 101 bytes
	for most, want := range map[int]string{0: "d.path", 101: "d.path", 100: `d.path_/login/[a-z]*\.do`, 64: `d.path_/login/[a-z]*\.do`} {
		tree, err := Compile(specs, Options{PatternBytes: most})
		if err != nil {
			t.Fatal(err)
		}
		if got := tree.Domain("d").Match(long); got.Path != want {
			t.Errorf("%d bytes: %s, want %s", most, got.Path, want)
		}
	}
}
