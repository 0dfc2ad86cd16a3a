package descriptor

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// domainOf compiles the first level of a domain. Every node gets a limit of a minute.
func domainOf(t rapid.TB, o Options, nodes ...NodeSpec) *Domain {
	t.Helper()
	for i := range nodes {
		nodes[i].Rule = &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Minute}}}}
	}
	tree, err := Compile([]DomainSpec{{Name: "d", Children: nodes}}, o)
	if err != nil {
		t.Fatal(err)
	}
	return tree.Domain("d")
}

// keyOf returns the key of the counter of an entry, or nothing.
func keyOf(d *Domain, key, value string) string {
	entries := []Entry{{key, value}}
	rule := d.Match(entries)
	if rule == nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(string(KeyBuilder{}.AppendKey(nil, "d", rule.CountedEntries(entries), rule, &rule.Limits[0])), "d|"), "|f60")
}

func TestGroupedValues(t *testing.T) {
	six, both, tenant := Group{V6: 64}, Group{V4: 24, V6: 56}, Group{Capture: 1}
	d := domainOf(t, Options{PatternBytes: 64},
		NodeSpec{Key: "six", Group: six},
		NodeSpec{Key: "both", Group: both},
		NodeSpec{Key: "one", Kind: MatchCIDR, Value: "10.0.0.0/8"},
		NodeSpec{Key: "one", Kind: MatchCIDR, Value: "2001:db8::/32"},
		NodeSpec{Key: "all", Kind: MatchCIDR, Value: "10.0.0.0/8", ShareThreshold: true},
		NodeSpec{Key: "net", Kind: MatchCIDR, Value: "2001:db8::/32", Group: six},
		NodeSpec{Key: "net", Group: six},
		NodeSpec{Key: "path", Kind: MatchRegex, Value: `/(?:v\d/)?tenants/([^/]+)(/.*)?`, Group: tenant},
		NodeSpec{Key: "path", Kind: MatchRegex, Value: `/t/([^/]+)/(?P<rest>.*)|/none`, Group: tenant, FoldCase: true},
		NodeSpec{Key: "path", Kind: MatchRegex, Value: `/end/([a-z]+)x*/end`, Group: tenant},
		NodeSpec{Key: "second", Kind: MatchRegex, Value: `(a+)-(b+)`, Group: Group{Capture: 2}},
		NodeSpec{Key: "name", FoldCase: true},
		NodeSpec{Key: "name", Value: "bob|", FoldCase: true},
		NodeSpec{Key: "name", Value: "Bob|"},
		NodeSpec{Key: "name", Kind: MatchValues, Values: []string{"eve", "bob|"}, FoldCase: true},
		NodeSpec{Key: "name", Value: "x-*", FoldCase: true},
		NodeSpec{Key: "team", Value: "red*", FoldCase: true, ShareThreshold: true},
		NodeSpec{Key: "plan", Value: "pro", FoldCase: true, Condition: true},
	)
	for _, c := range []struct{ key, value, want string }{
		{"six", "2001:db8:1:2:3:4:5:6", "six=~2001:db8:1:2::"},
		{"six", "2001:DB8:1:2::", "six=~2001:db8:1:2::"},
		{"six", "2001:db8:1:3::1", "six=~2001:db8:1:3::"},
		{"six", "10.1.2.3", "six=~10.1.2.3"},
		{"six", "::ffff:10.1.2.3", "six=~10.1.2.3"},
		{"six", "::FFFF:0a01:0203", "six=~10.1.2.3"},
		{"six", "fe80::1%eth0", "six=~fe80::"},
		{"six", "fe80::2%", "six=~fe80::2%"},
		{"six", "10.1.2.3:80", "six=~10.1.2.3"},
		{"six", "10.1.2.3:81", "six=~10.1.2.3"},
		{"six", "10.1.2.3/32", "six=~10.1.2.3"},
		{"six", "10.1.2.9/24", "six=~10.1.2.0/24"},
		{"six", "10.1.2.3:99999", "six=~10.1.2.3:99999"},
		{"six", "010.1.2.3", "six=~010.1.2.3"},
		{"six", "[2001:db8::1]", "six=~2001:db8::"},
		{"six", "[2001:db8::2%eth0]:443", "six=~2001:db8::"},
		{"six", "2001:db8::/64", "six=~2001:db8::"},
		{"six", "2001:db8::/60", "six=~2001:db8::/60"},
		{"both", "10.1.2.0/24", "both=~10.1.2.0"},
		{"both", "10.1.2.0/23", "both=~10.1.2.0/23"},
		{"both", "10.1.2.3:80", "both=~10.1.2.0"},
		{"one", "10.1.2.3", "one=10.1.2.3"},
		{"one", "::ffff:10.1.2.3", "one=10.1.2.3"},
		{"one", "::ffff:a01:203", "one=10.1.2.3"},
		{"one", "0:0:0:0:0:FFFF:0a01:0203", "one=10.1.2.3"},
		{"one", "10.1.2.3/32", "one=10.1.2.3"},
		{"one", "10.1.2.3:443", "one=10.1.2.3"},
		{"one", "10.1.2.9/24", "one=10.1.2.0/24"},
		{"one", "2001:DB8:0::1%eth0", "one=2001:db8::1"},
		{"one", "2001:db8:1:2:3::/64", "one=2001:db8:1:2::/64"},
		{"all", "::ffff:10.1.2.3", "all~~=10.0.0.0/8"},
		{"six", "%eth0", "six=~%eth0"},
		{"six", "", "six=~"},
		{"six", "a|b=~{c}", `six=~a\|b\=\~\[c}`},
		{"both", "10.1.2.3", "both=~10.1.2.0"},
		{"both", "::ffff:10.1.2.9", "both=~10.1.2.0"},
		{"both", "2001:db8:1:2:3:4:5:6", "both=~2001:db8:1::"},
		{"net", "2001:db8::1", "net~~=2001:db8::/32=~2001:db8::"},
		{"net", "2001:db9::1", "net=~2001:db9::"},
		{"path", "/tenants/acme", `path~~/(?:v\\d/)?tenants/([^/]+)(/.*)?=~acme`},
		{"path", "/v2/tenants/acme/orders", `path~~/(?:v\\d/)?tenants/([^/]+)(/.*)?=~acme`},
		{"path", "/tenants/a|b/", `path~~/(?:v\\d/)?tenants/([^/]+)(/.*)?=~a\|b`},
		{"path", "/tenants/acme/" + strings.Repeat("x", 200), `path~~/(?:v\\d/)?tenants/([^/]+)(/.*)?=~acme`},
		{"path", "/T/AcMe/x", `path~~/t/([^/]+)/(?P<rest>.*)\|/none=~acme`},
		{"path", "/none", `path~~/t/([^/]+)/(?P<rest>.*)\|/none=~`},
		{"path", "/end/abxx/end", `path~~/end/([a-z]+)x*/end=~abxx`},
		// too long to see whether the end is there
		{"path", "/end/" + strings.Repeat("x", 200), "path~~/end/([a-z]+)x*/end=~"},
		{"second", "aa-bbb", "second~~(a+)-(b+)=~bbb"},
		{"name", "Ann", "name=~=ann"},
		{"name", "ANN|=", `name=~=ann\|\=`},
		{"name", "É", "name=~=É"},
		{"name", "bob|", `name=~=bob\|`}, // the rule of bob, in the usual case of letters
		{"name", "BOB|", `name=~=bob\|`},
		{"name", "Bob|", `name=Bob\|`}, // exactly as a rule has it
		{"name", "EVE", `name~=bob\|=eve=~=eve`},
		{"name", "X-A", "name~x-*=~=x-a"},
		{"team", "RED1", "team~red*"},
		{"plan", "PRO", "plan~"},
		{"plan", "PRO ", ""},
	} {
		if got := keyOf(d, c.key, c.value); got != c.want {
			t.Errorf("%s=%s has the counter %s, want %s", c.key, c.value, got, c.want)
		}
		// Explain finds the same rule, and shows the counted value.
		entries := []Entry{{c.key, c.value}}
		x := d.Explain(entries, KeyBuilder{})
		if x.Rule != d.Match(entries) {
			t.Errorf("%s=%s: Explain finds another rule: %s", c.key, c.value, x.Reason)
		}
		if x.Rule != nil && (strings.Contains(c.want, "=~") || x.Rule.Counted(0, c.value) != c.value) && !strings.Contains(fmt.Sprint(x.Levels[0].Candidates), fmt.Sprintf("; it counts as %q", x.Rule.Counted(0, c.value))) {
			t.Errorf("%s=%s: not explained: %v", c.key, c.value, x.Levels[0].Candidates)
		}
	}
}

// A counter of grouped values belongs to one rule and one group, and a counted value is in the group that it stands
// for.
func TestGroupsAgreeWithTheModel(t *testing.T) {
	specs := []NodeSpec{
		{Key: "ip", Group: Group{V4: 24, V6: 48}},
		{Key: "ip", Kind: MatchCIDR, Value: "10.0.0.0/25", Group: Group{V4: 30}},
		{Key: "ip", Kind: MatchCIDR, Value: "10.0.0.0/8", Group: Group{V4: 16}},
		{Key: "ip", Kind: MatchCIDR, Value: "2001:db8::/47", Group: Group{V6: 64}},
		{Key: "ip", Kind: MatchWildcard, Value: "*:*:*", Group: Group{V6: 32}},
	}
	d := domainOf(t, Options{}, specs...)
	part := rapid.SampledFrom([]byte{0, 1, 2, 10, 127, 128, 255})
	address := rapid.Custom(func(t *rapid.T) string {
		if rapid.Bool().Draw(t, "four") {
			a := netip.AddrFrom4([4]byte{10, part.Draw(t, "b") & 1, part.Draw(t, "c") & 1, part.Draw(t, "d")}).String()
			return rapid.SampledFrom([]string{a, "::ffff:" + a, a + "/32", a + ":443", "[::ffff:" + a + "]:5", "::ffff:" + a + "/128"}).Draw(t, "form")
		}
		b := [16]byte{0x20, 0x01, 0x0d, 0xb8}
		for _, i := range []int{3, 4, 5, 7, 8, 15} {
			b[i] |= part.Draw(t, "byte")
		}
		if rapid.Bool().Draw(t, "zone") {
			return netip.AddrFrom16(b).String() + "%" + rapid.SampledFrom([]string{"1", "eth0"}).Draw(t, "name")
		}
		return rapid.SampledFrom([]string{netip.AddrFrom16(b).String(), strings.ToUpper(netip.AddrFrom16(b).StringExpanded()), "[" + netip.AddrFrom16(b).String() + "]:80"}).Draw(t, "form")
	})
	// group is the rule and the network, found the slow way.
	group := func(value string) (*Rule, netip.Prefix) {
		rule := d.Match([]Entry{{"ip", value}})
		a := plainAddress(value)
		g := specs[rule.Index].Group
		bits := int(g.V6)
		if a.Is4() {
			bits = int(g.V4)
		}
		if bits == 0 {
			bits = a.BitLen()
		}
		return rule, netip.PrefixFrom(a, bits).Masked()
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := address.Draw(t, "a"), address.Draw(t, "b")
		ra, pa := group(a)
		rb, pb := group(b)
		if same := keyOf(d, "ip", a) == keyOf(d, "ip", b); same != (ra == rb && pa == pb) {
			t.Fatalf("%s (%s of %s) and %s (%s of %s): one counter: %t", a, pa, ra.Path, b, pb, rb.Path, same)
		}
		counts := ra.Counted(0, a)
		if again := ra.Counted(0, counts); again != counts || !pa.Contains(netip.MustParseAddr(counts)) {
			t.Fatalf("%s counts as %s, which counts as %s", a, counts, again)
		}
	})
}

// plainAddress is the address in a value of this test.
func plainAddress(value string) netip.Addr {
	value = strings.TrimSuffix(strings.TrimSuffix(value, "/32"), "/128")
	if ap, err := netip.ParseAddrPort(value); err == nil {
		value = ap.Addr().String()
	}
	return netip.MustParseAddr(value).Unmap().WithZone("")
}

// Case does not matter for the values of a rule with fold_case, and they have one counter for all cases.
func TestFoldCaseAgreesWithTheModel(t *testing.T) {
	letters := func(of string) *rapid.Generator[string] {
		return rapid.StringOfN(rapid.RuneFrom([]rune(of)), 0, 4, -1)
	}
	rapid.Check(t, func(t *rapid.T) {
		var nodes []NodeSpec
		var seen []string
		for range rapid.IntRange(1, 6).Draw(t, "rules") {
			n := NodeSpec{Key: "k", Value: letters("abé*").Draw(t, "value"), FoldCase: rapid.Bool().Draw(t, "fold")}
			if !n.FoldCase && n.Value != "" && rapid.Bool().Draw(t, "upper") {
				n.Value = strings.ToUpper(n.Value)
			}
			if id := fmt.Sprint(n.Value); !strings.Contains("|"+strings.Join(seen, "|")+"|", "|"+id+"|") {
				seen, nodes = append(seen, id), append(nodes, n)
			}
		}
		// The same rules in lower case match the same values in lower case, if all of them have fold_case.
		var all []NodeSpec
		for _, n := range nodes {
			if n.FoldCase {
				n.Kind = 0
				all = append(all, n)
			}
		}
		d := domainOf(t, Options{}, nodes...)
		value := letters("abABé*").Draw(t, "value")
		rule := d.Match([]Entry{{"k", value}})
		if len(all) == len(nodes) {
			plain := make([]NodeSpec, len(all))
			for i := range all {
				plain[i] = all[i]
				plain[i].FoldCase, plain[i].Rule = false, nil
			}
			want := domainOf(t, Options{}, plain...).Match([]Entry{{"k", Fold(value)}})
			if (rule == nil) != (want == nil) || rule != nil && rule.Path != want.Path {
				t.Fatalf("%q matches %v, in lower case %v; %+v", value, rule, want, nodes)
			}
		}
		if rule == nil {
			return
		}
		if _, fold := rule.GroupAt(0); fold {
			if counts := rule.Counted(0, value); counts != strings.Map(func(r rune) rune {
				if r == 'A' || r == 'B' {
					return r + 'a' - 'A'
				}
				return r
			}, value) {
				t.Fatalf("%q counts as %q", value, counts)
			}
		}
		x, chosen := d.Explain([]Entry{{"k", value}}, KeyBuilder{}), 0
		if x.Rule != rule {
			t.Fatalf("%q: Explain finds %v, want %v", value, x.Rule, rule)
		}
		for _, c := range x.Levels[0].Candidates {
			if c.Matched {
				chosen++
			}
		}
		if chosen != 1 {
			t.Fatalf("%q: %d candidates are chosen; %+v", value, chosen, nodes)
		}
	})
}

func TestParseGroup(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"ipv6/64", "ipv6/64"},
		{"ipv4/24", "ipv4/24"},
		{"ipv6/56,ipv4/32", "ipv4/32,ipv6/56"},
		{"ipv4/24, ipv6/56", "ipv4/24,ipv6/56"},
		{"$1", "$1"},
		{"$9", "$9"},
		{"", ""}, {"$0", ""}, {"$10", ""}, {"$", ""}, {"$tenant", ""}, {"ip/64", ""}, {"ipv6", ""}, {"ipv6/", ""}, {"ipv6/064", ""}, {"ipv6/64,", ""},
		{"ipv6/64,ipv6/56", ""}, {"ipv6/0", ""}, {"ipv6/129", ""}, {"ipv4/33", ""}, {"ipv4/24  ,ipv6/64", ""}, {"$1,ipv6/64", ""}, {"ipv6/+64", ""},
	} {
		g, err := ParseGroup(c.text)
		if got := g.String(); (err != nil) != (c.want == "") || err == nil && got != c.want {
			t.Errorf("%q is %q, want %q; error %v", c.text, got, c.want, err)
		}
	}
}

// A value that counts takes memory only if its text is not a part of the value that was sent.
func TestGroupsAllocateLittle(t *testing.T) {
	d := domainOf(t, Options{},
		NodeSpec{Key: "ip", Group: Group{V6: 64}},
		NodeSpec{Key: "net", Kind: MatchCIDR, Value: "10.0.0.0/8"},
		NodeSpec{Key: "net", Kind: MatchCIDR, Value: "2001:db8::/32"},
		NodeSpec{Key: "name", Value: "ann", FoldCase: true},
		NodeSpec{Key: "name", FoldCase: true},
		NodeSpec{Key: "path", Kind: MatchRegex, Value: "/([^/]+)/(.*)", Group: Group{Capture: 1}})
	buf, counted := make([]byte, 0, 1024), make([]Entry, 0, 1)
	for _, c := range []struct {
		key, value string
		most       float64
	}{
		{"ip", "2001:db8:1:2:3:4:5:6", 1}, {"ip", "2001:db8:1:2::", 0}, {"ip", "10.1.2.3", 0}, {"ip", "no address", 0},
		{"net", "10.1.2.3", 0}, {"net", "10.1.2.3/32", 0}, {"net", "10.1.2.3:443", 0}, {"net", "10.1.2.0/24", 0}, {"net", "::ffff:10.1.2.3", 0},
		{"net", "[2001:db8::1]:443", 0}, {"net", "2001:db8::1%eth0", 0}, {"net", "2001:DB8::1", 1},
		{"name", "ann", 0}, {"name", "bob", 0}, {"name", "SOMEBODY ELSE", 1},
		{"path", "/acme/orders", 0},
	} {
		entries := []Entry{{c.key, c.value}}
		if got := testing.AllocsPerRun(100, func() {
			rule := d.Match(entries)
			counted = rule.AppendCounted(counted[:0], entries)
			buf = KeyBuilder{}.AppendKey(buf[:0], "d", counted, rule, &rule.Limits[0])
		}); got > c.most {
			t.Errorf("%s=%s: %v allocations, want %v", c.key, c.value, got, c.most)
		}
	}
}
