package descriptor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
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
		{Key: "ip", Kind: MatchRegex, Value: "10[.].*", Rule: leaf("regex")},
		{Key: "ip", Kind: MatchCIDR, Value: "10.0.0.0/8", Rule: leaf("ten")},
		{Key: "ip", Kind: MatchCIDR, Value: "10.1.0.0/16", Rule: leaf("ten one")},
		{Key: "ip", Kind: MatchValues, Values: []string{"10.1.2.3", "10.1.2.4"}, Rule: leaf("two of them")},
		{Key: "ip", Value: "10.1.2.4", Rule: leaf("four")},
	}}}, Options{})

	if err != nil {
		t.Fatal(err)
	}
	return tree.Domain("d")
}

func TestExplainSaysWhichRuleAndWhy(t *testing.T) {
	d := explained(t)
	for _, tt := range []struct {
		entries []Entry
		rule    string // name; empty for no rule
		key     string
		reason  string // part of it
		last    string // the last level: kind:value:matched, ...
		why     string // part of the reason of the last level's candidates
	}{
		{[]Entry{{"path", "/a"}}, "exact", "d|path=/a|f60", "", "exact:/a:true wildcard:/x*:false wildcard:/*:false any::false", `not tried: the exact value "/a" comes first`},
		{[]Entry{{"path", "/xy"}}, "x", "d|path=/xy|f60", "", "exact::false wildcard:/x*:true wildcard:/*:false any::false", `"/xy" is not among the 2 exact values`},
		{[]Entry{{"path", "/y"}}, "slash", "d|path=/y|f60", "", "exact::false wildcard:/x*:false wildcard:/*:true any::false", "does not fit"},
		{[]Entry{{"path", "q"}}, "any", "d|path=q|f60", "", "exact::false wildcard:/x*:false wildcard:/*:false any::true", "matches any value"},
		{[]Entry{{"path", ""}}, "any", "d|path=|f60", "", "exact::false wildcard:/x*:false wildcard:/*:false any::true", "an empty value is no exact value"},
		{[]Entry{{"path", "/b"}}, "", "", `shorter than any rule here: below the last entry the rules continue with "ip", "user"`, "exact:/b:true wildcard:/x*:false wildcard:/*:false any::false", ""},
		{[]Entry{{"path", "/b"}, {"user", "u"}}, "user", "d|path=/b|user=u|f60", "", "any::true", ""},
		{[]Entry{{"path", "/b"}, {"user", "u"}, {"more", "m"}}, "", "", "longer than any rule here: no rule continues below entry 2", "", ""},
		{[]Entry{{"path", "/b"}, {"usr", "u"}}, "", "", `nothing matches entry 2, "usr"="u"`, "", ""},
		{[]Entry{{"only", "two"}}, "", "", `nothing matches entry 1`, "exact::false", ""},
		{[]Entry{{"empty", "x"}}, "", "", "has no rate_limit", "any::true", ""},
		{[]Entry{{"ip", "10.1.2.4"}}, "four", "d|ip=10.1.2.4|f60", "", "exact:10.1.2.4:true values:10.1.2.4:false cidr:10.1.0.0/16:false cidr:10.0.0.0/8:false regex:10[.].*:false", `not tried: the exact value "10.1.2.4" comes first`},
		{[]Entry{{"ip", "10.1.2.3"}}, "two of them", "d|ip=10.1.2.3|f60", "", "exact::false values:10.1.2.3:true cidr:10.1.0.0/16:false cidr:10.0.0.0/8:false regex:10[.].*:false", "the value is in the rule's list"},
		{[]Entry{{"ip", "10.1.2.5"}}, "ten one", "d|ip=10.1.2.5|f60", "", "exact::false values::false cidr:10.1.0.0/16:true cidr:10.0.0.0/8:false regex:10[.].*:false", `"10.1.2.5" is not among the 2 values in lists`},
		{[]Entry{{"ip", "::ffff:a02:1"}}, "ten", "d|ip=10.2.0.1|f60", "", "exact::false values::false cidr:10.0.0.0/8:true regex:10[.].*:false", "the smallest that holds it"},
		{[]Entry{{"ip", "10.2.0.9/24"}}, "ten", "d|ip=10.2.0.0/24|f60", "", "exact::false values::false cidr:10.0.0.0/8:true regex:10[.].*:false", `it counts as "10.2.0.0/24"`},
		{[]Entry{{"ip", "010.2.0.9"}}, "", "", "nothing matches entry 1", "exact::false values::false cidr::false regex:10[.].*:false", `"010.2.0.9" is no address: an IPv4 address has four decimal numbers without zeros before them`},
		{[]Entry{{"ip", "10.2.0.9:99999"}}, "regex", "d|ip=10.2.0.9:99999|f60", "", "exact::false values::false cidr::false regex:10[.].*:true", `"10.2.0.9:99999" is no address: write one like`},
		{[]Entry{{"ip", "10.x"}}, "regex", "d|ip=10.x|f60", "", "exact::false values::false cidr::false regex:10[.].*:true", `"10.x" is no address; "10.x" fits the expression`},
		{[]Entry{{"ip", "::1"}}, "", "", "nothing matches entry 1", "exact::false values::false cidr::false regex:10[.].*:false", `"::1" is in none of the 2 networks`},
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
				got = append(got, fmt.Sprintf("%s:%s:%v", c.Kind, c.Value, c.Matched))
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

// A level without a matching rule lists the keys and values of its rules; other levels do not.
func TestExplainNamesWhatThereIs(t *testing.T) {
	d := explained(t)
	for _, tt := range []struct {
		entries      []Entry
		keys, values string
	}{
		{[]Entry{{"pth", "/a"}}, "empty ip only path", ""},
		{[]Entry{{"only", "on"}}, "empty ip only path", "one"},
		{[]Entry{{"ip", "::1"}}, "empty ip only path", "10.1.2.3 10.1.2.4"},
		{[]Entry{{"path", "/b"}, {"usr", "u"}}, "ip user", ""},
		{[]Entry{{"only", "one"}}, "", ""},
	} {
		levels := d.Explain(tt.entries, KeyBuilder{}).Levels
		last := levels[len(levels)-1]
		slices.Sort(last.Keys)
		slices.Sort(last.Values)
		if keys, values := strings.Join(last.Keys, " "), strings.Join(last.Values, " "); keys != tt.keys || values != tt.values {
			t.Errorf("%v: keys %q, values %q, want %q and %q", tt.entries, keys, values, tt.keys, tt.values)
		}
	}
}

func TestExplainOfUnknownDomain(t *testing.T) {
	tree, err := Compile(nil, Options{})
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
	racetest.Sequential(t)
	rng := rand.New(rand.NewPCG(1, 2))
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	patterns := []NodeSpec{{}, {Value: "x"}, {Value: "xy"}, {Value: "y*"}, {Value: "*"}, {Value: "x*y"}, {Value: "z"},
		{Kind: MatchValues, Values: []string{"x", "zz"}}, {Kind: MatchRegex, Value: "[xy]+"}, {Kind: MatchRegex, Value: ".?"},
		{Kind: MatchCIDR, Value: "1.0.0.0/8"}, {Kind: MatchCIDR, Value: "1.1.0.0/16"}, {Kind: MatchCIDR, Value: "::/0"}}
	var specs func(depth int) []NodeSpec
	specs = func(depth int) []NodeSpec {
		var out []NodeSpec
		seen := map[string]bool{}
		for range rng.IntN(16) {
			s := patterns[rng.IntN(len(patterns))]
			s.Key = keys[rng.IntN(len(keys))]
			if id := fmt.Sprint(s.Level()); seen[id] {
				continue
			} else {
				seen[id] = true
			}
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
		tree, err := Compile([]DomainSpec{{Name: "d", Children: specs(2)}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		d := tree.Domain("d")
		for range 50 {
			entries := make([]Entry, rng.IntN(4))
			for i := range entries {
				entries[i] = Entry{keys[rng.IntN(len(keys))], []string{"", "x", "xy", "yy", "zz", "xzy", "1.1.1.1", "1.2.1.1", "::1"}[rng.IntN(9)]}
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

// A reason shows an expression as the rule file has it, and names the only value that a rule has.
func TestExplainShowsWhatTheRuleSays(t *testing.T) {
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{
		{Key: "path", Kind: MatchRegex, Value: `/v\d+\.html`, Rule: &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Minute}}}}},
		{Key: "path", Value: "/b", Rule: &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Minute}}}}},
		{Key: "path", Rule: &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Minute}}}}},
	}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, c := range tree.Domain("d").Explain([]Entry{{"path", "/v1.html"}}, KeyBuilder{}).Levels[0].Candidates {
		reasons = append(reasons, c.Reason)
	}
	if want := []string{`"/v1.html" differs from "/b", the only exact value`, `"/v1.html" fits the expression`, `not tried: the expression "/v\d+\.html" comes first`}; !slices.Equal(reasons, want) {
		t.Errorf("%q, want %q", reasons, want)
	}
}
