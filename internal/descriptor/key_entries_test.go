package descriptor

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A key of the values themselves names its entries, regardless of their bytes.
func TestKeyEntriesAreThoseOfTheKey(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune(`\|=~{[#f1aé`)), 0, 5, -1)
	rapid.Check(t, func(t *rapid.T) {
		domain := text.Draw(t, "domain")
		entries := make([]Entry, rapid.IntRange(1, 3).Draw(t, "length"))
		for i := range entries {
			entries[i] = Entry{text.Draw(t, "key"), text.Draw(t, "value")}
		}
		key := KeyBuilder{}.AppendKey(nil, domain, entries, nil, &Limit{Window: Window{Unit: Second}})
		if got, ok := KeyEntries(domain, string(key)); !ok || !slices.Equal(got, entries) {
			t.Fatalf("%s has %q, %v, want %q", key, got, ok, entries)
		}
	})
}

// The entries that a key names lead to its counter again, even if values are grouped or a pattern stands for them.
func TestKeyEntriesLeadToTheirCounter(t *testing.T) {
	rule := func() *Rule { return &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Second}}}} }
	d := domainOf(t, Options{},
		NodeSpec{Key: "plain", Rule: rule()},
		NodeSpec{Key: "ip", Group: Group{V6: 64}, Rule: rule()},
		NodeSpec{Key: "net", Kind: MatchCIDR, Value: "10.0.0.0/8", Group: Group{V4: 24}, Rule: rule()},
		NodeSpec{Key: "shared", Kind: MatchCIDR, Value: "10.0.0.0/8", ShareThreshold: true, Rule: rule()},
		NodeSpec{Key: "name", FoldCase: true, Rule: rule()},
		NodeSpec{Key: "path", Value: "/search*", ShareThreshold: true, Rule: rule()},
		NodeSpec{Key: "list", Kind: MatchValues, Values: []string{"a", "b=", "c|"}, ShareThreshold: true, Rule: rule()},
		NodeSpec{Key: "long", Kind: MatchValues, Values: []string{strings.Repeat("x", 200), "y"}, ShareThreshold: true, Rule: rule()},
		NodeSpec{Key: "method", Value: "POST", Condition: true, Children: []NodeSpec{{Key: "name", FoldCase: true, Group: Group{V4: 24}, Rule: rule()}}},
	)
	for sent, want := range map[string]string{
		"plain=a{=~|\\":        "plain=a{=~|\\",
		"ip=2001:db8:0:1:2::3": "ip=2001:db8:0:1::",
		"ip=192.0.2.7":         "ip=192.0.2.7",
		"net=10.1.2.3":         "net=10.1.2.0",
		"shared=10.1.2.3":      "shared=10.0.0.0/8",
		"name=Ann=é":           "name=ann=é",
		"path=/search/shoes":   "path=/search*",
		"list=a":               "list=c|",
		"long=y":               "", // its key contains a hash
	} {
		key, value, _ := strings.Cut(sent, "=")
		x := d.Explain([]Entry{{key, value}}, KeyBuilder{Prefix: "p:"})
		got, ok := KeyEntries(d.Name, x.Keys[0])
		if want == "" {
			if ok {
				t.Errorf("%s has %q", x.Keys[0], got)
			}
			continue
		}
		if !ok || len(got) != 1 || got[0].Key+"="+got[0].Value != want {
			t.Errorf("%s has %q, %v, want %s", x.Keys[0], got, ok, want)
			continue
		}
		if again := d.Explain(got, KeyBuilder{Prefix: "p:"}); !slices.Equal(again.Keys, x.Keys) {
			t.Errorf("%s: its entries %q have the keys %q", x.Keys[0], got, again.Keys)
		}
	}
	x := d.Explain([]Entry{{"method", "POST"}, {"name", "192.0.2.77"}}, KeyBuilder{})
	if got, ok := KeyEntries(d.Name, x.Keys[0]); !ok || !slices.Equal(got, []Entry{{"method", ""}, {"name", "192.0.2.0"}}) {
		t.Errorf("%s has %q, %v", x.Keys[0], got, ok)
	}
	for _, key := range []string{"", "d", "d|f60", "other|k=v|f60", d.Name + "|kv|f60"} {
		if got, ok := KeyEntries(d.Name, key); ok {
			t.Errorf("%s has %q", key, got)
		}
	}
}
