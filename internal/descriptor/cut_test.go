package descriptor

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// kindsOfRules returns rules that deny all customers, some customers, or nobody.
func kindsOfRules() map[string]*Rule {
	limits := func(of ...Enforcement) *Rule {
		r := &Rule{}
		for i, e := range of {
			r.Limits = append(r.Limits, Limit{Requests: 9, Window: Window{Unit: Minute, Multiplier: uint32(i + 1)}, Enforcement: e, EnforcePercent: 50})
		}
		return r
	}
	shadow, hours := limits(EnforcedForAll), limits(EnforcedForAll)
	shadow.Shadow, hours.Schedule = true, &Schedule{Active: []*Active{{Begin: 60}}}
	return map[string]*Rule{
		"all": limits(EnforcedForAll), "all of several": limits(EnforcedInShadow, EnforcedForAll),
		"some": limits(EnforcedForSome), "some hours": hours,
		"unlimited": {Unlimited: true}, "shadow": shadow, "limits in shadow": limits(EnforcedInShadow, EnforcedInShadow), "soft": limits(EnforcedSoftly), "none": nil,
	}
}

const (
	cutAt = 16
	pad   = "0000000000000000000000000000"
)

func compileCut(t testing.TB, children []NodeSpec) *Domain {
	t.Helper()
	tree, err := Compile([]DomainSpec{{Name: "d", Children: children}}, Options{PatternBytes: cutAt})
	if err != nil {
		t.Fatal(err)
	}
	return tree.Domain("d")
}

// pathOf matches entries with Match and with Explain, which must agree.
func pathOf(t testing.TB, d *Domain, entries ...Entry) string {
	t.Helper()
	r, x := d.Match(entries), d.Explain(entries, KeyBuilder{})
	if x.Rule != r {
		t.Errorf("%q: Match and Explain find different rules: %v and %v", entries, r, x.Rule)
	}
	for i, level := range x.Levels {
		matched := 0
		for _, c := range level.Candidates {
			if c.Matched {
				matched++
			}
		}
		if want := level.Reason == ""; matched != 1 && want || matched != 0 && !want {
			t.Errorf("%q: Explain has chosen %d candidates for entry %d, and says %q", entries, matched, i, level.Reason)
		}
	}
	if r == nil {
		return ""
	}
	return r.Path
}

// An expression that exempts customers does not match a value of which it sees only the start, so nobody escapes a
// limit by making a value longer.
func TestLongValuesEscapeNoLimit(t *testing.T) {
	const images, slow = `/assets/.*\.png`, `/assets/.*a.{20}|/assets/.*\.png` // slow is in no automaton
	for name, rule := range kindsOfRules() {
		for _, expression := range []string{images, slow} {
			exempts := func() *Rule {
				if rule == nil {
					return nil
				}
				r := *rule
				return &r
			}
			catchAll := kindsOfRules()["all"]
			for shape, c := range map[string]struct {
				children []NodeSpec
				below    []Entry
				stays    string // the path of an image
				limited  string // the path of all else
			}{
				"the key only":       {[]NodeSpec{{Key: "path", Kind: MatchRegex, Value: expression, Rule: exempts()}, {Key: "path", Rule: catchAll}}, nil, "d.path_" + expression, "d.path"},
				"another expression": {[]NodeSpec{{Key: "path", Kind: MatchRegex, Value: expression, Rule: exempts()}, {Key: "path", Kind: MatchRegex, Value: "/.*", Rule: catchAll}}, nil, "d.path_" + expression, "d.path_/.*"},
				"a wildcard":         {[]NodeSpec{{Key: "path", Kind: MatchRegex, Value: expression, Rule: exempts()}, {Key: "path", Value: "/*", Rule: catchAll}}, nil, "d.path_" + expression, "d.path_/*"},
				"a star in the key":  {[]NodeSpec{{Key: "path", Kind: MatchRegex, Value: expression, Rule: exempts()}, {Key: "pa*", Rule: catchAll}}, nil, "d.path_" + expression, "d.pa*"},
				"a level below": {[]NodeSpec{
					{Key: "path", Kind: MatchRegex, Value: expression, Children: []NodeSpec{{Key: "method", Value: "GET", Rule: exempts()}, {Key: "method", Rule: kindsOfRules()["all"]}}},
					{Key: "path", Children: []NodeSpec{{Key: "method", Rule: catchAll}}},
				}, []Entry{{"method", "GET"}}, "d.path_" + expression + ".method_GET", "d.path.method"},
			} {
				d := compileCut(t, c.children)
				if rule == nil {
					c.stays = ""
				}
				if got := pathOf(t, d, append([]Entry{{"path", "/assets/x.png"}}, c.below...)...); got != c.stays {
					t.Errorf("%s, %s, %s: a short value matches %q, want %q", name, shape, expression, got, c.stays)
				}
				want := c.limited
				if strings.HasPrefix(name, "all") {
					want = c.stays
				}
				for _, value := range []string{"/assets/" + pad + "/../../secret", "/assets/" + pad + ".png"} {
					if got := pathOf(t, d, append([]Entry{{"path", value}}, c.below...)...); got != want {
						t.Errorf("%s, %s, %s: %s matches %q, want %q", name, shape, expression, value, got, want)
					}
				}
			}
		}
	}
}

// Match of long values is compared with the trees that lack some of the expressions: if one of them denies the
// customer, so does Match. Otherwise the value matches no expression that exempts customers.
func TestLongValuesFindTheRuleThatDenies(t *testing.T) {
	racetest.Sequential(t)
	rng := rand.New(rand.NewPCG(7, 29))
	kinds := []string{"all", "some", "unlimited", "shadow", "none"}
	texts := []string{"a.*b", "a.*", "[ab]*", ".*b", "b.*a.{20}", ".*"}
	found := make(map[denial]int)
	for range rapidtest.Cases(50, 150) {
		expressions := 0
		var level func(depth int) []NodeSpec
		level = func(depth int) (nodes []NodeSpec) {
			for _, i := range rng.Perm(len(texts))[:rng.IntN(3)] {
				nodes = append(nodes, NodeSpec{Key: "k", Kind: MatchRegex, Value: texts[i]})
				expressions++
			}
			for _, other := range []NodeSpec{{Key: "k"}, {Key: "k", Value: "a*"}, {Key: "*"}} {
				if rng.IntN(3) == 0 {
					nodes = append(nodes, other)
				}
			}
			rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			for i := range nodes {
				nodes[i].Rule = kindsOfRules()[kinds[rng.IntN(len(kinds))]]
				if depth > 1 {
					nodes[i].Children = level(depth - 1)
				}
			}
			return nodes
		}
		specs := level(2)
		if expressions > 6 {
			continue
		}
		var entries []Entry
		for range 1 + rng.IntN(2) {
			entries = append(entries, Entry{"k", string("ab"[rng.IntN(2)]) + strings.Repeat("ab", rng.IntN(20))})
		}
		d := compileCut(t, specs)
		pathOf(t, d, entries...)
		got := d.Match(entries)
		if !d.cuts(entries) {
			if want := d.match(entries); got != want {
				t.Fatalf("%q: short values match %v, want %v", entries, got, want)
			}
			continue
		}
		strictest, without := deniesNobody, ""
		for set := range 1 << expressions {
			n := 0
			r := compileCut(t, withoutSome(specs, entries, set, &n)).match(entries)
			strictest = max(strictest, r.deniesWhom())
			if without = ""; r != nil {
				without = r.Path // path in the last tree, which has none of them
			}
		}
		if got.deniesWhom() != strictest {
			t.Fatalf("%q: Match denies %d, and %d is possible: %+v", entries, got.deniesWhom(), strictest, specs)
		}
		if found[strictest]++; strictest == deniesNobody && got != nil && got.Path != without || strictest == deniesNobody && got == nil && without != "" {
			t.Fatalf("%q: matches %v, want %q as without expressions: %+v", entries, got, without, specs)
		}
	}
	if len(found) < 3 {
		t.Errorf("the draws had %v", found)
	}
}

// withoutSome copies specs without the expressions in a set, on levels with a long value.
func withoutSome(specs []NodeSpec, entries []Entry, set int, n *int) (kept []NodeSpec) {
	for _, s := range specs {
		if s.Kind == MatchRegex {
			bit := 1 << *n
			*n++
			if len(entries) > 0 && set&bit != 0 && len(entries[0].Value) > cutAt {
				withoutSome(s.Children, nil, 0, n) // counts them
				continue
			}
		}
		if s.Rule != nil {
			r := *s.Rule
			s.Rule = &r
		}
		var below []Entry
		if len(entries) > 0 {
			below = entries[1:]
		}
		s.Children = withoutSome(s.Children, below, set, n)
		kept = append(kept, s)
	}
	return kept
}

// Many expressions that exempt customers cost a bounded number of look-ups, and open no way around the limit behind
// them.
func TestManyExemptionsAreBounded(t *testing.T) {
	var children []NodeSpec
	for i := range 3 * maxCutTries {
		children = append(children, NodeSpec{Key: "path", Kind: MatchRegex, Value: fmt.Sprintf(`/.*\.kind%d`, i), Rule: &Rule{Unlimited: true}})
	}
	d := compileCut(t, append(children, NodeSpec{Key: "path", Rule: kindsOfRules()["all"]}))
	entries := []Entry{{"path", "/" + pad}}
	if got := pathOf(t, d, entries...); got != "d.path" {
		t.Errorf("it matches %q", got)
	}
	if m := d.matchCut(entries); m.tries != maxCutTries+1 {
		t.Errorf("%d look-ups, want %d", m.tries, maxCutTries+1)
	}
}

func TestLongOverlap(t *testing.T) {
	for _, c := range []struct {
		first, second string
		fold, want    bool
	}{
		{`/files/.*\.zip`, `.*`, false, true},
		{`/files/.*\.zip`, `/files/[a-z]*`, false, true},
		{`/files/.*\.zip`, `/Files/[a-z]*`, false, false},
		{`/files/.*\.zip`, `/Files/[a-z]*`, true, true},
		{`/files/.*\.zip`, `/other/.*`, false, false},
		{`/files/.*\.zip`, `/files/[a-z]*\.zip`, false, false}, // the first one matches all values of the second one
		{`/files/.*`, `.*`, false, false},                      // the start decides
		{`/files/.{1,20}\.zip`, `.*`, false, false},            // not of any length
		{`[a-z]*[0-9]{3}`, `[a-z]*[0-9]{3}x`, false, true},
		{`.*a.{20}`, `.*`, false, true}, // too large to know
	} {
		if got := LongOverlap(c.first, c.fold, c.second, c.fold); got != c.want {
			t.Errorf("%s and %s: %v, want %v", c.first, c.second, got, c.want)
		}
	}
}
