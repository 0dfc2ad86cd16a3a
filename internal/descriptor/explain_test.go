package descriptor

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func explained(t *testing.T) *Domain {
	t.Helper()
	leaf := func(name string) *Rule {
		return &Rule{Name: name, Limits: []Limit{{Requests: 5, Window: Window{Unit: Minute}}}, Position: Position{File: "a.yaml", Line: 7, Col: 3}}
	}
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{
		{Key: "path", Value: "/a", Rule: leaf("exact")},
		{Key: "path", Value: "/b", Children: []NodeSpec{{Key: "user", Rule: leaf("user")}, {Key: "ip", Rule: leaf("ip")}}},
		{Key: "path", Value: "/x*", Rule: leaf("x")},
		{Key: "path", Value: "/*", Rule: leaf("slash")},
		{Key: "path", Rule: leaf("any")},
		{Key: "empty"},
		{Key: "only", Value: "one", Rule: leaf("one")},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return tree.Domain("d")
}

func TestExplainSaysWhichRuleAndWhy(t *testing.T) {
	d := explained(t)
	for _, tt := range []struct {
		entries []Entry
		rule    string // name; empty: none
		key     string
		reason  string // part of it
		last    string // the last level: kind:value:matched, ...
		why     string // part of the reason of the last level's candidates
	}{
		{[]Entry{{"path", "/a"}}, "exact", "d|path=/a|f60", "", "exact:/a:true wildcard:/x*:false wildcard:/*:false any::false", "not asked"},
		{[]Entry{{"path", "/xy"}}, "x", "d|path=/xy|f60", "", "exact::false wildcard:/x*:true wildcard:/*:false any::false", `"/xy" is not among the 2 exact values`},
		{[]Entry{{"path", "/y"}}, "slash", "d|path=/y|f60", "", "exact::false wildcard:/x*:false wildcard:/*:true any::false", "does not fit"},
		{[]Entry{{"path", "q"}}, "any", "d|path=q|f60", "", "exact::false wildcard:/x*:false wildcard:/*:false any::true", "takes any value"},
		{[]Entry{{"path", ""}}, "any", "d|path=|f60", "", "exact::false wildcard:/x*:false wildcard:/*:false any::true", "an empty value is no exact value"},
		{[]Entry{{"path", "/b"}}, "", "", `shorter than any rule here: below the last entry the rules go on with "ip", "user"`, "exact:/b:true wildcard:/x*:false wildcard:/*:false any::false", ""},
		{[]Entry{{"path", "/b"}, {"user", "u"}}, "user", "d|path=/b|user=u|f60", "", "any::true", ""},
		{[]Entry{{"path", "/b"}, {"user", "u"}, {"more", "m"}}, "", "", "longer than any rule here: no rule goes on below entry 2", "", ""},
		{[]Entry{{"path", "/b"}, {"usr", "u"}}, "", "", `nothing matches entry 2, "usr"="u"`, "", ""},
		{[]Entry{{"only", "two"}}, "", "", `nothing matches entry 1`, "exact::false", ""},
		{[]Entry{{"empty", "x"}}, "", "", "has no rate_limit", "any::true", ""},
		{nil, "", "", "without entries", "", ""},
	} {
		t.Run(fmt.Sprint(tt.entries), func(t *testing.T) {
			x := d.Explain(tt.entries, KeyBuilder{})
			name, key := "", ""
			if x.Rule != nil {
				name, key = x.Rule.Name, strings.Join(x.Keys, " ")
			}
			if !x.Known || name != tt.rule || key != tt.key {
				t.Errorf("known %v, rule %q, key %q, want rule %q, key %q", x.Known, name, key, tt.rule, tt.key)
			}
			if (tt.reason == "") != (x.Reason == "") || !strings.Contains(x.Reason, tt.reason) {
				t.Errorf("reason %q, want %q in it", x.Reason, tt.reason)
			}
			if len(tt.entries) == 0 {
				return
			}
			last := x.Levels[len(x.Levels)-1]
			var got, why []string
			for _, c := range last.Candidates {
				kind := map[MatchKind]string{MatchExact: "exact", MatchWildcard: "wildcard", MatchAny: "any"}[c.Kind]
				got = append(got, fmt.Sprintf("%s:%s:%v", kind, c.Value, c.Matched))
				why = append(why, c.Reason)
			}
			if strings.Join(got, " ") != tt.last {
				t.Errorf("candidates %v, want %v", got, tt.last)
			}
			if !strings.Contains(strings.Join(why, "; "), tt.why) {
				t.Errorf("candidates because %q, want %q among it", why, tt.why)
			}
		})
	}
}

func TestExplainOfUnknownDomain(t *testing.T) {
	tree, err := Compile(nil)
	if err != nil {
		t.Fatal(err)
	}
	x := tree.Domain("nobody").Explain([]Entry{{"a", "b"}}, KeyBuilder{})
	if x.Known || x.Rule != nil || x.Reason == "" {
		t.Errorf("got %+v", x)
	}
}

// Whatever the tree, Explain and Match agree, and exactly one candidate of every level but the last is taken.
func TestExplainAgreesWithMatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	keys, values := []string{"a", "b", "c", "d", "e", "f", "g", "h"}, []string{"", "x", "xy", "y*", "*", "x*y", "z"}
	var specs func(depth int) []NodeSpec
	specs = func(depth int) []NodeSpec {
		var out []NodeSpec
		seen := map[string]bool{}
		for range rng.IntN(12) {
			s := NodeSpec{Key: keys[rng.IntN(len(keys))], Value: values[rng.IntN(len(values))]}
			if seen[s.Key+"\x00"+s.Value] {
				continue
			}
			seen[s.Key+"\x00"+s.Value] = true
			if rng.IntN(3) > 0 {
				s.Rule = &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Second}}}}
			}
			if depth > 0 && rng.IntN(2) > 0 {
				s.Children = specs(depth - 1)
			}
			out = append(out, s)
		}
		return out
	}
	matched := 0
	for range 300 {
		tree, err := Compile([]DomainSpec{{Name: "d", Children: specs(2)}})
		if err != nil {
			t.Fatal(err)
		}
		d := tree.Domain("d")
		for range 50 {
			entries := make([]Entry, rng.IntN(4))
			for i := range entries {
				entries[i] = Entry{keys[rng.IntN(len(keys))], []string{"", "x", "xy", "yy", "zz", "xzy"}[rng.IntN(6)]}
			}
			want, got := d.Match(entries), d.Explain(entries, KeyBuilder{})
			if got.Rule != want || (got.Reason == "") != (want != nil) {
				t.Fatalf("%v: Explain found %v because %q, Match %v", entries, got.Rule, got.Reason, want)
			}
			if want != nil {
				matched++
			}
			for i, l := range got.Levels {
				taken := 0
				for _, c := range l.Candidates {
					if c.Matched {
						taken++
					}
				}
				last := i == len(got.Levels)-1
				if taken > 1 || (taken == 0) != (l.Reason != "") || (taken == 0 && !last) {
					t.Fatalf("%v: level %d took %d candidates, reason %q", entries, i, taken, l.Reason)
				}
			}
		}
	}
	if matched < 100 {
		t.Errorf("only %d descriptors matched: the test shows nothing", matched)
	}
}
