package descriptor

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func FuzzAddress(f *testing.F) {
	for _, s := range []string{
		"", ".", ":", "::", ":::", "1.2.3.4", "255.255.255.255", "256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1..2.3", "1.2.3.4:5", "0.0.0.0", "00.0.0.0",
		"1::", "::1", "1::2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8::", "1::2::3", "1:2:3:4:5:6:7:8:9", "1:", ":1", "12345::",
		"::1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7:1.2.3.4", "::1.2.3.4:5", "::ffff:1.2.3.4", "::FFFF:102:304", "fe80::1%eth0", "1.2.3.4%eth0", "::1.2.3", "1:2::1.2.3.4",
		"ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "g::", "1.2.3.-4", "[::1]", "1:2:3:4:5:6:7", "1:2:3:4:5::1.2.3.4", "1::.2.3.4",
		"[::1]:443", "[::1]:", "[::1]x", "[::1", "::1]", "[1.2.3.4]:5", "[fe80::1%eth0]:5", "1.2.3.4:65535", "1.2.3.4:65536", "1.2.3.4:", "1.2.3.4:+5", "[::ffff:1.2.3.4]:5",
		"1.2.3.4/32", "1.2.3.0/24", "1.2.3.4/24", "1.2.3.4/33", "1.2.3.4/", "1.2.3.4/024", "1.2.3.4:5/24", "2001:db8::/64", "2001:db8::1/129", "::ffff:1.2.3.4/128", "::ffff:1.2.3.4/104",
		"::ffff:0:0/90", "fe80::1%eth0/64", "[::1]/64", "0.0.0.0/0", "::/0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := ParseNetwork(s)
		if want, wantOK := slowNetwork(s); ok != wantOK || got != want {
			t.Fatalf("%q is %v, %v; want %v, %v", s, got, ok, want, wantOK)
		}
	})
}

var (
	withPort  = regexp.MustCompile(`^(?:([0-9.]+)|\[([^\[\]]*:[^\[\]]*)\])(?::0*([0-9]{1,5}))?$`)
	hasZone   = regexp.MustCompile(`^([^%]*:[^%]*)%(?s:.+)$`)
	mappedBit = netip.MustParsePrefix("::ffff:0:0/96")
)

// slowNetwork is ParseNetwork, written with expressions and the functions of package netip.
func slowNetwork(s string) (p netip.Prefix, ok bool) {
	at := strings.LastIndex(s, "/")
	bits := ""
	if at >= 0 {
		s, bits = s[:at], s[at:]
	} else if m := withPort.FindStringSubmatch(s); m != nil {
		if port := s[strings.LastIndex(s, ":")+1:]; m[3] != "" && len(port) > 5 {
			return p, false
		}
		if n, _ := strconv.Atoi(m[3]); n > 65535 {
			return p, false
		}
		s = m[1] + m[2]
	}
	if m := hasZone.FindStringSubmatch(s); m != nil {
		s = m[1]
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return p, false
	}
	if bits == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	if p, err = netip.ParsePrefix(s + bits); err != nil {
		return netip.Prefix{}, false
	}
	if mappedBit.Contains(p.Addr()) && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}

// For any set of networks, the smallest one that holds an address is found, as a search through all of them would.
func TestSmallestNetworkIsFound(t *testing.T) {
	// Few different bits, so that networks lie within each other and addresses at their edges.
	byteOf := rapid.SampledFrom([]byte{0, 1, 0x7f, 0x80, 0xfe, 0xff})
	draw := func(t *rapid.T, four bool) netip.Addr {
		var b [16]byte
		fill := byteOf.Draw(t, "fill")
		for i := range b {
			b[i] = fill
		}
		for range 3 {
			b[rapid.IntRange(0, 15).Draw(t, "place")] = byteOf.Draw(t, "byte")
		}
		if four {
			return netip.AddrFrom4([4]byte(b[:4]))
		}
		return netip.AddrFrom16(b)
	}
	rapid.Check(t, func(t *rapid.T) {
		var n networks
		seen := make(map[netip.Prefix]bool)
		for i := range rapid.IntRange(0, 30).Draw(t, "networks") {
			a := draw(t, rapid.Bool().Draw(t, "four"))
			if a.Is4In6() {
				continue
			}
			p := netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits")).Masked()
			if !seen[p] {
				seen[p] = true
				n.insert(p, node(i))
			}
		}
		try := func(a netip.Addr, length int) {
			a = a.Unmap()
			value := netip.PrefixFrom(a, min(length, a.BitLen())).Masked()
			want, bits := noNode, -1
			for _, w := range n.list {
				if w.prefix.Contains(value.Addr()) && w.prefix.Bits() > bits && w.prefix.Bits() <= value.Bits() {
					want, bits = w.child, w.prefix.Bits()
				}
			}
			text := value.String()
			if value.IsSingleIP() {
				text = value.Addr().String()
			}
			parsed, ok := ParseNetwork(text)
			if got := n.find(parsed); !ok || parsed != value || got != want {
				t.Fatalf("%v is in network %d, want %d, of %v", value, int32(got), int32(want), n.list)
			}
		}
		for range 20 {
			try(draw(t, rapid.Bool().Draw(t, "four")), 128)
			try(draw(t, rapid.Bool().Draw(t, "four")), rapid.IntRange(0, 128).Draw(t, "length"))
		}
		for p := range seen {
			try(p.Addr(), 128)
			for length := max(0, p.Bits()-1); length <= p.Bits()+1; length++ {
				try(p.Addr(), length)
			}
			if before := p.Addr().Prev(); before.IsValid() {
				try(before, 128)
			}
		}
	})
}

func TestParseCIDR(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"2001:DB8::/32", "2001:db8::/32"},
		{"::ffff:10.0.0.0/104", "10.0.0.0/8"},
		{"::/0", "::/0"},
		{"10.0.0.1/8", `error: "10.0.0.1/8" has bits beyond its first 8: write 10.0.0.0/8, or 10.0.0.1/32 for only the address`},
		{"10.0.0.1", `error: "10.0.0.1" is an address: write 10.0.0.1/32 for the network of only this address`},
		{"::1", `error: "::1" is an address: write ::1/128 for the network of only this address`},
		{"10.0.0.0/33", `error: "10.0.0.0/33" is no network: write one like 10.0.0.0/8 or 2001:db8::/32`},
		{"10/8", `error: "10/8" is no network: write one like 10.0.0.0/8 or 2001:db8::/32`},
		{"fe80::1%eth0", `error: "fe80::1%eth0" is no network: write one like 10.0.0.0/8 or 2001:db8::/32`},
		{"", `error: "" is no network: write one like 10.0.0.0/8 or 2001:db8::/32`},
	} {
		p, err := ParseCIDR(c.text)
		got := p.String()
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.text, got, c.want)
		}
	}
}

func TestCompileRegexRejects(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "empty",
		"(a":                      "missing closing ) in \"(a\"",
		"a)(b":                    "unexpected ) in \"a)(b\"",
		"a**":                     "invalid nested repetition operator in \"**\"",
		`(?<=a)b`:                 "invalid named capture in \"(?<=a)b\"",
		`(a)\1`:                   "invalid escape sequence in \"\\\\1\"",
		"(?:a{1000}){1000}":       "repeat",
		strings.Repeat("a", 1025): "longer than 1024 bytes",
	} {
		if _, err := CompileRegex(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: %v, want %s", text, err, want)
		}
	}
}

// An expression matches a value if it can match all of it.
func FuzzRegex(f *testing.F) {
	for _, text := range []string{"a", "a|ab", "a*", "(?i)AB", "(?m)^a$", `\Qa|b`, `\Aab?\z`, "a+?", "(?s).", ".", "[^a]", "x*|y", "(?U)a+"} {
		for _, value := range []string{"", "a", "ab", "aa", "a\nb", "a|b", "A", "\xff"} {
			f.Add(text, value)
		}
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		re, err := CompileRegex(text)
		alone, aloneErr := regexp.Compile(text)
		if (err == nil) != (aloneErr == nil) && text != "" && len(text) <= maxRegexSize {
			t.Fatalf("%q: %v, and alone %v", text, err, aloneErr)
		}
		if err != nil || len(text)*len(value) > 1<<14 {
			return
		}
		alone.Longest()
		at := alone.FindStringIndex(value)
		if want := at != nil && at[0] == 0 && at[1] == len(value); re.MatchString(value) != want {
			t.Errorf("%q matches all of %q: %v, want %v", text, value, !want, want)
		}
	})
}

// manyNetworks is a domain of one key with that many networks of all sizes, a tenth of them IPv6, and addresses.
func manyNetworks(tb testing.TB, count int) (*Domain, []string) {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	spec := DomainSpec{Name: "d"}
	seen := make(map[netip.Prefix]bool)
	for len(seen) < count {
		var p netip.Prefix
		if len(seen)%10 == 0 {
			a := [16]byte{0x20, 0x01, byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())}
			p = netip.PrefixFrom(netip.AddrFrom16(a), 24+rng.IntN(40)).Masked()
		} else {
			a := [4]byte{byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())}
			p = netip.PrefixFrom(netip.AddrFrom4(a), 8+rng.IntN(25)).Masked()
		}
		if !seen[p] {
			seen[p] = true
			spec.Children = append(spec.Children, NodeSpec{Key: "ip", Kind: MatchCIDR, Value: p.String(), Rule: perMinute(1)})
		}
	}
	tree, err := Compile([]DomainSpec{spec}, Options{})
	if err != nil {
		tb.Fatal(err)
	}
	var addresses []string
	for i := range 1 << 12 {
		if i%10 == 0 {
			addresses = append(addresses, fmt.Sprintf("2001:%x:%x::%x", rng.Uint32()&0xffff, rng.Uint32()&0xffff, i))
			continue
		}
		addresses = append(addresses, fmt.Sprintf("%d.%d.%d.%d", rng.IntN(256), rng.IntN(256), rng.IntN(256), rng.IntN(256)))
	}
	return tree.Domain("d"), addresses
}

func TestMatchOfPatternsAllocatesNothing(t *testing.T) {
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{
		{Key: "ip", Kind: MatchCIDR, Value: "10.0.0.0/8"},
		{Key: "ip", Kind: MatchCIDR, Value: "2001:db8::/32"},
		{Key: "ip", Kind: MatchValues, Values: []string{"a", "b"}},
		{Key: "ip", Value: "x*"},
		{Key: "ip", Kind: MatchRegex, Value: "(a|b)+c?[0-9]{2}"},
	}}}, Options{})

	if err != nil {
		t.Fatal(err)
	}
	d := tree.Domain("d")
	for _, value := range []string{"10.1.2.3", "10.1.2.3/32", "10.1.2.0/24", "10.1.2.3:443", "[2001:db8::1]:443", "2001:db8::/64", "11.1.2.3", "2001:db8::1", "::1", "::ffff:10.1.2.3", "", "1.2.3.4.5", "1::2::3",
		"fe80::1%eth0", "1.2.3.4%eth0", "nothing", "ababc12", "a", "xyz", strings.Repeat("z", 100)} {
		entries := []Entry{{"ip", strings.Clone(value)}}
		if allocs := testing.AllocsPerRun(100, func() { d.Match(entries) }); allocs != 0 {
			t.Errorf("a match of %q allocates %v times", value, allocs)
		}
	}
}

func BenchmarkMatchPatterns(b *testing.B) {
	run := func(name string, d *Domain, values []string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			entries := make([]Entry, 1)
			i := 0
			for b.Loop() {
				entries[0] = Entry{"ip", values[i&(len(values)-1)]}
				d.Match(entries)
				i++
			}
		})
	}
	for _, n := range []int{10, 10_000, 100_000} {
		d, addresses := manyNetworks(b, n)
		run(fmt.Sprintf("cidr-%d", n), d, addresses)
	}
	one := func(specs ...NodeSpec) *Domain {
		for i := range specs {
			specs[i].Key, specs[i].Rule = "ip", perMinute(1)
		}
		tree, err := Compile([]DomainSpec{{Name: "d", Children: specs}}, Options{})
		if err != nil {
			b.Fatal(err)
		}
		return tree.Domain("d")
	}
	listed := NodeSpec{Kind: MatchValues}
	for i := range 100_000 {
		listed.Values = append(listed.Values, fmt.Sprintf("value-%06d", i))
	}
	run("values-100000", one(listed), []string{"value-012345"})
	run("wildcard", one(NodeSpec{Value: "/api/*"}), []string{"/api/v1/route-000042"})
	run("wildcard-last-of-10", one(append(wildcards(9), NodeSpec{Value: "/api/*"})...), []string{"/api/v1/route-000042"})
	run("regex", one(NodeSpec{Kind: MatchRegex, Value: "/api/v[0-9]+/.*"}), []string{"/api/v1/route-000042"})
}

func wildcards(n int) []NodeSpec {
	var specs []NodeSpec
	for i := range n {
		specs = append(specs, NodeSpec{Value: fmt.Sprintf("/%d/*", i)})
	}
	return specs
}
