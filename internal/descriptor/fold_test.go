package descriptor

import (
	"fmt"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// On ASCII an expression with fold matches the same texts as with the flag (?i).
func TestFoldedExpressions(t *testing.T) {
	for _, text := range append(expressions, "[a-f]+", "[^a-f]+", "[^A]", "[Z-a]*", "ska|SKb", "[[:upper:]]b", `\pL\d`, "a|b", "(?:A|b)c", "[x-zA]{2}", `\x41\.[^/]k`, "(?i:a)b") {
		parsed, err := parseRegex(text, true)
		if err != nil {
			t.Fatal(err)
		}
		folded, err := compileRegex(text, parsed, true)
		if err != nil {
			t.Fatal(err)
		}
		want, err := CompileRegex("(?i:" + text + ")")
		if err != nil {
			continue // it ends in a \Q
		}
		rapid.Check(t, func(t *rapid.T) {
			value := rapid.StringOfN(rapid.RuneFrom([]rune("aAbBfFgGkKsSzZ/_1.\n")), 0, 5, -1).Draw(t, "value")
			if got, want := folded.MatchString(value), want.MatchString(value); got != want {
				t.Fatalf("%s matches %q: %t, want %t", text, value, got, want)
			}
		})
	}
}

// Values that an expression with fold treats as equal have one counter: a customer does not get another counter for
// each way to write s and k.
func TestFoldedExpressionsAndCounters(t *testing.T) {
	d := domainOf(t, Options{}, NodeSpec{Key: "k", Kind: MatchRegex, Value: "shop-k[s-u]é|[^s]x", FoldCase: true})
	var seen []string
	for _, value := range []string{"shop-ksé", "SHOP-KSé", "\u017fhop-ksé", "shop-\u212asé", "shop-k\u017fé", "shop-ksÉ", "Sx", "\u017fx"} {
		seen = append(seen, keyOf(d, "k", value))
	}
	const mark = "k~~shop-k[s-u]é\\|[^s]x=~="
	if want := []string{mark + "shop-ksé", mark + "shop-ksé", "", "", "", "", "", mark + "\u017fx"}; fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("counters %q\nwant %q", seen, want)
	}
}

// An exact value without case and a network of addresses are two counters, even if both have the same text.
func TestFoldedValueBesideANetwork(t *testing.T) {
	d := domainOf(t, Options{},
		NodeSpec{Key: "ip", Value: "2001:db8::", FoldCase: true},
		NodeSpec{Key: "ip", Group: Group{V6: 64}})
	one, all := keyOf(d, "ip", "2001:DB8::"), keyOf(d, "ip", netip.MustParseAddr("2001:db8::1").String())
	if one == all || one == "" || all == "" {
		t.Errorf("counters %q and %q", one, all)
	}
}

// A long value is made lower case once, however many wildcards there are.
func TestWildcardsFoldOnce(t *testing.T) {
	var nodes []NodeSpec
	for i := range 100 {
		nodes = append(nodes, NodeSpec{Key: "k", Value: fmt.Sprintf("x%d*", i), FoldCase: true})
	}
	d := domainOf(t, Options{}, append(nodes, NodeSpec{Key: "k"})...)
	entries := []Entry{{"k", strings.Repeat("A", 60_000)}}
	if n := testing.AllocsPerRun(10, func() {
		if rule := d.Match(entries); rule.Path != "d.k" {
			t.Fatal(rule.Path)
		}
	}); n > 1 {
		t.Errorf("a match allocates %v times, want once", n)
	}
}

// An expression that regexText writes matches the same texts as the original, wherever classes and letters of any case
// stand in it.
func TestRegexText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{"[^/]", "[a-c]", `\pL`, "[^a-zé]", `\x{e000}`, "\ue001", "k", "é", "(?i:k[^s])", "(?i)x", "[[:^alpha:]]", `[\x{e000}-\x{e002}]`, ".", "$"})
		after := rapid.SampledFrom([]string{"", "", "*", "+?", "{2}", "|"})
		text := ""
		for range rapid.IntRange(1, 5).Draw(t, "parts") {
			text += part.Draw(t, "part") + after.Draw(t, "after")
		}
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			t.Skip("not valid")
		}
		want := regexp.MustCompile(`\A(?:` + parsed.String() + `)\z`)
		got, err := regexp.Compile(`\A(?:` + regexText(parsed) + `)\z`)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for range 20 {
			value := rapid.StringOfN(rapid.SampledFrom([]rune("/aAbkKsSſ\u212aéÉxX1\ue000\ue001\n")), 0, 5, -1).Draw(t, "value")
			if got.MatchString(value) != want.MatchString(value) {
				t.Fatalf("%s matches %q: %v, want %v", text, value, got.MatchString(value), want.MatchString(value))
			}
		}
	})
}

// An expression whose classes have many characters costs about as much with fold_case as without.
func TestCostOfFoldedClasses(t *testing.T) {
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "[^%c]", '\u4e00'+i)
	}
	cost := func(fold bool) time.Duration {
		least := time.Hour
		for range 3 {
			began := time.Now()
			parsed, err := parseRegex(b.String(), fold)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := compileRegex(b.String(), parsed, fold); err != nil {
				t.Fatal(err)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	if plain, folded := cost(false), cost(true); folded > 50*plain { // it was 500 times as much
		t.Errorf("%s with fold_case, %s without", folded, plain)
	}
}
