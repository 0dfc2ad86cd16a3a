package rulecheck

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// allTexts returns all texts of these letters up to a length.
func allTexts(letters string, length int) []string {
	all := []string{""}
	from := 0
	for range length {
		to := len(all)
		for _, text := range all[from:to] {
			for _, l := range letters {
				all = append(all, text+string(l))
			}
		}
		from = to
	}
	return all
}

// Whether one wildcard covers another is verified with all values. The letter c is in no wildcard.
func TestGlobCovers(t *testing.T) {
	values := allTexts("abc", 6)
	var globs []glob
	var takes []map[string]bool
	for _, text := range allTexts("ab*", 4) {
		if !strings.Contains(text, "*") {
			continue
		}
		g := glob{pieces: strings.Split(text, "*"), exact: true}
		taken := make(map[string]bool)
		for _, v := range values {
			if g.match(v) {
				taken[v] = true
			}
		}
		globs, takes = append(globs, g), append(takes, taken)
	}
	for i := range globs {
		for j := range globs {
			want := true
			for v := range takes[j] {
				if !takes[i][v] {
					want = false
					break
				}
			}
			if got := globs[i].covers(globs[j], globs[j].text()); got != want {
				t.Errorf("%q covers %q: %v, want %v", globs[i].pieces, globs[j].pieces, got, want)
			}
		}
	}
}

// A rule reported as never matching is never chosen, for any value.
func TestNeverMatchesIsSo(t *testing.T) {
	values := allTexts("abc", 5)
	values = append(values, allTexts("aB", 4)...)
	values = append(values, "A", "Ab", "a\xff", "10.0.1.1", "::ffff:10.0.0.7")
	for b := range 256 {
		values = append(values, netip.AddrFrom4([4]byte{10, 0, 0, byte(b)}).String())
	}
	const fold = ", fold_case: true"
	folded := func(of *rapid.Generator[string]) *rapid.Generator[string] {
		return rapid.Map(of, func(s string) string { return s + fold })
	}
	text := rapid.Map(rapid.StringMatching(`[ab*]{1,4}`), func(s string) string { return "value: \"" + s + "\"" })
	matcher := rapid.OneOf(
		folded(text), folded(rapid.SampledFrom([]string{"values: [aa, ba]", "value_regex: 'a.*'", "value_regex: '[ab]'"})),
		text, rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "a?", ".*", ".*", ".+", "[ab]", "^", "$", "(a|b)", "(?i:a)", "()"}), 1, 4),
			func(s []string) string { return "value_regex: '" + strings.Join(s, "") + "'" }),
		rapid.Map(rapid.SampledFrom([]string{"10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25", "10.0.0.0/26", "10.0.0.64/26", "10.0.0.6/31", "10.0.0.6/32", "10.0.0.7/32", "10.0.0.0/8"}),
			func(s string) string { return "value_cidr: " + s }),
		rapid.SampledFrom([]string{"values: [a, b]", "values: [ab, 10.0.0.7]", "value: 10.0.0.6", "value: 10.0.0.7", "metadata: {}"}),
	)
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		text.WriteString("domain: d\ndescriptors:\n")
		for _, m := range rapid.SliceOfNDistinct(matcher, 2, 12, func(s string) string { return strings.TrimSuffix(s, fold) }).Draw(t, "matchers") {
			fmt.Fprintf(&text, "  - {key: k, %s, rate_limit: {unit: day, requests_per_unit: 1}}\n", m)
		}
		files := []config.File{{Name: "a.yaml", Data: []byte(text.String())}}
		tree, errs := config.Compile(files, config.CompileOptions{})
		if len(errs) > 0 {
			t.Fatalf("%v\n%s", errs, &text)
		}
		chosen := make(map[int]string)
		for _, v := range values {
			if r := tree.Domain("d").Match([]descriptor.Entry{{Key: "k", Value: v}}); r != nil {
				chosen[r.Position.Line] = v
			}
		}
		for _, f := range Check(files, &Options{}, noon) {
			if f.Code != codeNeverMatches || strings.Contains(f.Message, "in `values` is never chosen") {
				continue
			}
			found++
			if v, is := chosen[f.Line]; is {
				t.Fatalf("%s is chosen for %q: %s\n%s", f.Position(), v, f.Message, &text)
			}
		}
	})
	if found == 0 && !testing.Short() { // -short draws only a few files
		t.Error("no draw had a finding")
	}
}

// A limit reported as unreachable because of another limit is never exceeded, in any of its windows on the clock.
func TestNeverDeniesIsSo(t *testing.T) {
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) limit {
			l := &descriptor.Limit{Requests: rapid.Uint64Range(1, 60).Draw(t, name+" requests")}
			l.Window = descriptor.Window{Unit: descriptor.Second, Multiplier: rapid.Uint32Range(1, 24).Draw(t, name+" seconds")}
			return limit{Limit: l}
		}
		a, b := draw("a"), draw("b")
		if !within(&a, &b) {
			return
		}
		found++
		la, lb := int64(a.Window.Length()/time.Second), int64(b.Window.Length()/time.Second)
		// All hits of a window of a may come at any instant of it. Two windows of b can share a window of a.
		for from := int64(0); from < la*lb; from += lb {
			touched := (from+lb-1)/la - from/la + 1
			if touched*int64(a.Requests) > int64(b.Requests) {
				t.Fatalf("%d per %d s lets %d through from %d s on, more than %d per %d s", a.Requests, la, touched*int64(a.Requests), from, b.Requests, lb)
			}
		}
	})
	if found == 0 && !testing.Short() { // -short draws only a few files
		t.Error("no draw had a finding")
	}
}

// check returns a result for every file content, and it includes the findings of config.
func FuzzCheck(f *testing.F) {
	for _, c := range ruleFileCases(f) {
		for _, text := range c.Files {
			f.Add([]byte(text))
		}
	}
	f.Add([]byte("domain: d\ndescriptors:\n  - &a {key: k, value: /a*b, <<: [{values: [x]}]} # check: ok x\n  - {<<: *a, key: *a}\n---\n---\n~\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		files := []config.File{{Name: "f.yaml", Data: data}}
		_, errs := config.Compile(files, config.CompileOptions{})
		all := Check(files, &Options{}, noon)
		errors := 0
		for _, x := range all {
			if x.Severity == Error {
				errors++
			}
			if x.Line < 1 || x.Line > len(lines(data)) || x.Col < 1 || x.Message == "" {
				t.Errorf("%+v", x)
			}
		}
		if (errors > 0) != (len(errs) > 0) {
			t.Errorf("%d errors of config, %d of check", len(errs), errors)
		}
	})
}
