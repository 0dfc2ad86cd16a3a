package descriptor

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
)

// compiled are the patterns of one key, and the expressions as package regexp has them.
func compiled(tb testing.TB, texts []string) (*patterns, []*regexp.Regexp) {
	tb.Helper()
	p := &patterns{}
	var all []*regexp.Regexp
	for i, text := range texts {
		re, err := CompileRegex(text)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, re)
		p.list = append(p.list, pattern{kind: MatchRegex, text: text, child: node(i)})
	}
	if err := p.finish(new(leastWork)); err != nil {
		tb.Fatal(err)
	}
	return p, all
}

func firstOf(all []*regexp.Regexp, value string) node {
	for i, re := range all {
		if re.MatchString(value) {
			return node(i)
		}
	}
	return noNode
}

var expressions = []string{
	"a", "a|ab", "a*", "(?i)AB", "(?i)k+", "(?m)^a$", `\Qa|b`, `\Aab?\z`, "a+?", "(?s).", ".", "[^a]", "x*|y", "(?U)a+", `\bab\b`, `a\B.`, "^/login$",
	`/v[0-9]+/users/.*`, `.*\.(css|js)`, `\pL+`, `[^\x00-\x7f]*`, `(a|b){3,5}`, `(?:)`, `$`, `(?m)a$\n^b`, `[[:^ascii:]]`, `.*a.{14}`, "é+", `\x{10FFFF}`, `[^\n]a`,
}

// FuzzAutomaton compares the automata with package regexp: three expressions in one automaton, of which the first match
// counts. A cut value matches the same expression as the whole value, or an earlier one.
func FuzzAutomaton(f *testing.F) {
	for i, text := range expressions {
		for _, value := range []string{"", "a", "ab", "aa", "a\nb", "K\u212a", "/v1/users/é", "A", "\xff", "x\xe2\x82", "/login", "aababba"} {
			f.Add(text, expressions[(i*7+3)%len(expressions)], expressions[(i*5+1)%len(expressions)], value, uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, one, two, three, value string, most uint8) {
		texts := []string{one, two, three}
		for _, text := range texts {
			if _, err := CompileRegex(text); err != nil || len(text) > 100 || len(value) > 200 {
				return
			}
		}
		p, all := compiled(t, texts)
		want := firstOf(all, value)
		if got := p.find(value, len(value), root); got != want {
			t.Errorf("of %q, %d matches %q, want %d", texts, got, value, want)
		}
		if got := p.find(value, int(most), root); got > want {
			t.Errorf("of %q, %d matches %q by its first %d bytes, and %d matches it", texts, got, value, most, want)
		}
	})
}

func TestLongValuesAreMatchedByTheirBeginning(t *testing.T) {
	p, _ := compiled(t, []string{`/static/[a-z]*\.css`, `.*/login`, `.*a.{20}`, `/api/.*`, `.*`})
	x := strings.Repeat("x", 100)
	for value, want := range map[string]node{
		"/static/" + x:         0,      // continues as the expression does
		"/static/0" + x:        1,      // the rest may end in /login
		"/" + x + "/login":     1,      // like the whole value
		"/api/" + x:            1,      //
		"/static/a.css":        0,      // not longer
		"/static/a.cs":         4,      //
		"/x" + "a" + x[:20]:    2,      // matched by an expression that is not in an automaton, and not longer
		"/api/logi":            3,      //
		strings.Repeat("é", 9): noNode, // set below
	} {
		most := 64
		if want == noNode {
			most, want = 5, 1 // a rune is not cut
		}
		if got := p.find(value, most, root); got != want {
			t.Errorf("%.20q: %d, want %d", value, got, want)
		}
	}
	slow, _ := compiled(t, []string{`b.*a.{20}`, `c[^z]*a.{20}`})
	if len(slow.automata) != 0 || len(slow.single) != 2 {
		t.Fatalf("%d automata, %d expressions alone", len(slow.automata), len(slow.single))
	}
	for value, want := range map[string]node{"b" + x: 0, "c" + x: 1, "cz" + x: noNode, "d" + x: noNode} {
		if got := slow.find(value, 64, root); got != want {
			t.Errorf("%.20q: %d, want %d", value, got, want)
		}
	}
}

// fifty are expressions such as people write.
func fifty() (texts []string) {
	for i := range 50 {
		switch i % 3 {
		case 0:
			texts = append(texts, fmt.Sprintf("/api/v[0-9]+/resource-%d/.*", i))
		case 1:
			texts = append(texts, fmt.Sprintf(`.*/item-%d(/.*)?`, i))
		default:
			texts = append(texts, fmt.Sprintf(`(?i)[a-z0-9/._-]*\.kind%d`, i))
		}
	}
	return texts
}

func TestManyExpressionsAgreeWithOneAfterTheOther(t *testing.T) {
	p, all := compiled(t, fifty())
	if len(p.single) > 0 {
		t.Errorf("%d expressions are in no automaton", len(p.single))
	}
	rng := rand.New(rand.NewPCG(4, 5))
	pieces := []string{"/api/v", "7", "/resource-", "/item-", "12", "49", "1", "/", "a", ".kind", ".KIND", "é", "\xff", "\n", "."}
	hits := 0
	for range 5000 {
		var b strings.Builder
		if rng.IntN(2) == 0 {
			fmt.Fprintf(&b, []string{"/api/v7/resource-%d/", "/item-%d", "/x.kind%d"}[rng.IntN(3)], rng.IntN(50))
		}
		for range rng.IntN(6) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
		want := firstOf(all, b.String())
		if got := p.find(b.String(), defaultPatternBytes, root); got != want {
			t.Errorf("%q: %d, want %d", b.String(), got, want)
		}
		if want != noNode {
			hits++
		}
	}
	if hits < 300 {
		t.Errorf("only %d values were matched at all", hits)
	}
}

func BenchmarkFiftyExpressions(b *testing.B) {
	began := time.Now()
	p, _ := compiled(b, fifty())
	b.Logf("compiled in %s: %d automata", time.Since(began), len(p.automata))
	for _, size := range []int{20, 200, 8 << 10, 64 << 10} {
		value := "/" + strings.Repeat("a", size-1)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.find(value, defaultPatternBytes, root)
			}
		})
	}
	b.Run("8192/unbounded", func(b *testing.B) {
		value := "/" + strings.Repeat("a", 8191)
		for b.Loop() {
			p.find(value, len(value), root)
		}
	})
}

// The work for the automata of a domain is bounded. An expression for which nothing is left is matched without one.
func TestWorkForAutomataIsBounded(t *testing.T) {
	p := &patterns{}
	for i := range 30 {
		p.list = append(p.list, pattern{kind: MatchRegex, text: fmt.Sprintf(".*a.{11}%d", i), child: node(i + 1)})
	}
	if err := p.finish(new(leastWork)); err != nil {
		t.Fatal(err)
	}
	if len(p.single) == 0 {
		t.Error("all expressions have an automaton")
	}
	for i := range 30 {
		if got := p.find(fmt.Sprintf("ba12345678901%d", i), 4096, root); got != node(i+1) {
			t.Errorf("expression %d: %d matches", i, got)
		}
	}
}
