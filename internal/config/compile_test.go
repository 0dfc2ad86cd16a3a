package config

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// conformanceCase is a set of rule files, and whether envoyproxy/ratelimit loads it.
type conformanceCase struct {
	Name  string
	Files []string
	Loads bool
	Note  string // where we differ on purpose
}

func conformanceCases(t testing.TB) []conformanceCase {
	t.Helper()
	data, err := os.ReadFile("testdata/rule-files.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []conformanceCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func filesOf(texts ...string) []File {
	var files []File
	for i, text := range texts {
		files = append(files, File{Name: fmt.Sprintf("%c.yaml", 'a'+i), Data: []byte(text)})
	}
	return files
}

// checkErrors fails unless there is one error for each of want, in this order, which starts with it and has a position
// in its file.
func checkErrors(t testing.TB, files []File, errs []*yamlform.Error, want []string) {
	t.Helper()
	checkPositions(t, files, errs)
	for i, e := range errs {
		if i >= len(want) {
			t.Errorf("not expected: %v", e)
		} else if !strings.HasPrefix(e.Error(), want[i]) {
			t.Errorf("got  %v\nwant %s", e, want[i])
		}
	}
	if len(errs) < len(want) {
		t.Errorf("missing: %q", want[len(errs):])
	}
}

// checkMistakes does the same for the file a.yaml with these descriptors, which start on line 2.
func checkMistakes(t testing.TB, descriptors string, want []string) {
	t.Helper()
	files := filesOf("descriptors:\n" + descriptors + "\ndomain: a\n")
	_, errs := Compile(files, CompileOptions{})
	prefixed := make([]string, len(want))
	for i, w := range want {
		prefixed[i] = "a.yaml:" + w
	}
	checkErrors(t, files, errs, prefixed)
}

// checkPositions fails for errors without a position, or with one that does not exist in the file.
func checkPositions(t testing.TB, files []File, errs []*yamlform.Error) {
	t.Helper()
	for _, e := range errs {
		var text string
		for _, f := range files {
			if f.Name == e.File {
				text = string(f.Data)
			}
		}
		all := splitLines(text)
		if e.Line < 1 || e.Line > len(all) {
			t.Errorf("%v: the file has %d lines", e, len(all))
			continue
		}
		if width := utf8.RuneCountInString(all[e.Line-1]); e.Col < 1 || e.Col > width+1 {
			t.Errorf("%v: the line has %d characters", e, width)
		}
		if len(e.Msg) < 10 {
			t.Errorf("%v: says too little", e)
		}
	}
}

// splitLines splits a text at YAML's line ends. It returns at least one line.
func splitLines(text string) []string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(text)
	text = strings.TrimPrefix(text, "\ufeff")
	lines := strings.Split(text, "\n")
	if len(lines) > 1 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func TestConformance(t *testing.T) {
	racetest.Sequential(t)
	ours := map[string]bool{ // the cases with a note, and our result
		"no-requests":         true,
		"same-yaml-key-twice": false,
		"two-documents":       true,
		"replaces-unknown":    true,
		"too-many-requests":   true,
	}
	for _, c := range conformanceCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			want, chosen := ours[c.Name]
			if !chosen {
				want = c.Loads
			}
			if c.Note != "" && !chosen {
				t.Fatalf("a noted case that we have not chosen an answer for: %s", c.Note)
			}
			files := filesOf(c.Files...)
			_, errs := Compile(files, CompileOptions{})
			if got := len(errs) == 0; got != want {
				t.Fatalf("loads: %v, want %v; errors %v", got, want, errs)
			}
			checkPositions(t, files, errs)
		})
	}
}

func TestBothDocumentsOfAFileAreLoaded(t *testing.T) {
	racetest.Sequential(t)
	tree, errs := Compile(filesOf("domain: a\n---\n---\ndomain: b\ndescriptors:\n  - {key: k, rate_limit: {unlimited: true}}\n---\n"), CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if tree.Domain("a") == nil || tree.Domain("b") == nil || tree.Domains() != 2 || len(tree.Rules) != 1 {
		t.Fatalf("domains %d, rules %d", tree.Domains(), len(tree.Rules))
	}
}

func TestEveryKeyReachesTheRule(t *testing.T) {
	tree, errs := Compile(filesOf(`# a comment
domain: shop
descriptors:
  - key: tier
    value: gold*
    share_threshold: true
    descriptors:
      - key: user
        value_to_metric: true
        detailed_metric: yes
        shadow_mode: true
        quota_mode: on
        metadata:
          owner: team
          tiers: [1, 2.5, {x: y}, null, 0x10, 2001-01-01]
          live: true
          big: 18446744073709551615
        rate_limit:
          name: per_user
          unit: Week
          requests_per_unit: 0x10
          replaces:
            - name: other
            - name: third
  - key: free
    rate_limit:
      unlimited: true
      name: none
`), CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	d := tree.Domain("shop")
	r := d.Match([]descriptor.Entry{{Key: "tier", Value: "golden"}, {Key: "user", Value: "u"}})
	if r == nil {
		t.Fatal("no rule matched")
	}
	if !r.Shares(0) || r.Shares(1) {
		t.Errorf("shares: %v %v, want only the first level", r.Shares(0), r.Shares(1))
	}
	limit := r.Limits[0]
	limit.Arithmetic = descriptor.Arithmetic{} // part of the tree, not of the file
	got := descriptor.Rule{Name: r.Name, Limits: []descriptor.Limit{limit}, Replaces: r.Replaces, RuleSettings: r.RuleSettings,
		MetricValues: r.MetricValues, Position: r.Position, Path: r.Path}
	want := descriptor.Rule{
		Name:     "per_user",
		Limits:   []descriptor.Limit{{Name: "per_user", Requests: 16, Window: descriptor.Window{Unit: descriptor.Week}}},
		Replaces: []string{"other", "third"},
		RuleSettings: descriptor.RuleSettings{
			Shadow: true, Quota: true, DetailedMetric: true,
			Metadata: map[string]any{"owner": "team", "live": true, "big": 18446744073709551615.0,
				"tiers": []any{1, 2.5, map[string]any{"x": true}, nil, 16, "2001-01-01"}},
		},
		MetricValues: &descriptor.MetricLevels{false, true},
		Position:     descriptor.Position{File: "a.yaml", Line: 8, Col: 9},
		Path:         "shop.tier_gold*.user",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(descriptor.Rule{})); diff != "" {
		t.Errorf("rule (-want +got):\n%s", diff)
	}
	free := d.Match([]descriptor.Entry{{Key: "free", Value: "x"}})
	if free == nil || !free.Unlimited || len(free.Limits) != 0 || free.Name != "none" {
		t.Errorf("unlimited rule: %+v", free)
	}
}

// Anchors, aliases and merge keys repeat the content that they refer to. The keys of a map override merged ones, and
// earlier merges override later ones.
func TestAnchors(t *testing.T) {
	tree, errs := Compile(filesOf(`domain: a
descriptors:
  - &one
    key: one
    shadow_mode: true
    rate_limit: &limit {unit: day, requests_per_unit: 3}
    descriptors: &below
      - key: below
        rate_limit: {<<: *limit, unit: hour}
  - <<: [{key: two, quota_mode: true}, *one]
    metadata: &m {a: 1, b: {<<: {c: 2}}}
  - key: three
    rate_limit: *limit
    descriptors: *below
    metadata: {<<: *m, a: 2}
`), CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	d := tree.Domain("a")
	match := func(keys ...string) *descriptor.Rule {
		t.Helper()
		var entries []descriptor.Entry
		for _, k := range keys {
			entries = append(entries, descriptor.Entry{Key: k, Value: "v"})
		}
		r := d.Match(entries)
		if r == nil {
			t.Fatalf("%v matches nothing", keys)
		}
		return r
	}
	for _, k := range []string{"one", "two", "three"} {
		if l := match(k).Limits[0]; l.Requests != 3 || l.Window.Unit != descriptor.Day {
			t.Errorf("%s: %+v", k, l)
		}
		if l := match(k, "below").Limits[0]; l.Requests != 3 || l.Window.Unit != descriptor.Hour {
			t.Errorf("%s, below: %+v", k, l)
		}
	}
	if two := match("two"); !two.Shadow || !two.Quota {
		t.Errorf("two: shadow %v, quota %v", two.Shadow, two.Quota)
	}
	want := map[string]any{"a": 2, "b": map[string]any{"c": 2}}
	if diff := cmp.Diff(want, match("three").Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if match("one", "below") == match("three", "below") {
		t.Error("two rules from one anchor are one rule")
	}
}

func TestErrors(t *testing.T) {
	deep := "domain: a\ndescriptors: " + strings.Repeat("[{key: k, descriptors: ", 33) + "[]" + strings.Repeat("}]", 33) + "\n"
	bomb := "domain: a\ndescriptors:\n  - {key: k, metadata: {a: &a [x, x, x, x, x, x, x, x, x, x]"
	for c := 'b'; c < 'j'; c++ {
		bomb += fmt.Sprintf(", %c: &%c [%s]", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","))
	}
	bomb += "}}\n"

	for _, c := range []struct {
		name  string
		files []string
		merge bool
		want  []string // all errors in order; the end of a message may be left out
	}{
		{"all errors of all files at once", []string{
			"domain: a\ndescriptors:\n  - key: k\n    ratelimit: {unit: day}\n  - value: v\n    rate_limit: {unit: fortnite, requests_per_unit: -3}\n",
			"domain: b\ndescriptor: []\n",
		}, false, []string{
			"a.yaml:4:5: unknown key `ratelimit`: did you mean `rate_limit`?",
			"a.yaml:5:5: a descriptor without a `key`",
			"a.yaml:6:24: unknown unit \"fortnite\": write `millisecond`, `second`, `minute`",
			"a.yaml:6:53: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not the number -3",
			"b.yaml:2:1: unknown key `descriptor`: did you mean `descriptors`?",
		}},
		{"camel case", []string{"domain: a\ndescriptors: [{key: k, rateLimit: {unit: minutes, requestsPerUnit: 3}}]\n"}, false, []string{
			"a.yaml:2:24: unknown key `rateLimit`: did you mean `rate_limit`?",
		}},
		{"unit in the plural", []string{"domain: a\ndescriptors: [{key: k, rate_limit: {unit: minutes, requestsPerUnit: 3}}]\n"}, false, []string{
			"a.yaml:2:43: unknown unit \"minutes\": did you mean `minute`?",
			"a.yaml:2:52: unknown key `requestsPerUnit`: did you mean `requests_per_unit`?",
		}},
		{"nothing like it", []string{"domain: a\nversion: 3\n"}, false, []string{
			"a.yaml:2:1: unknown key `version`: the top of a rule file has `domain`, `descriptors`, `admission`, `on_error`, `headers`, `request_override`, `refunds`, `envoy_delay`, `quota_buckets` and `regions`",
		}},
		{"key in the wrong map", []string{"domain: a\ndescriptors: [{key: k, unit: day, rate_limit: {unlimited: true, shadow_mode: true}}]\n"}, false, []string{
			"a.yaml:2:24: `unit` does not belong in a descriptor: it is a key of `rate_limit`",
			"a.yaml:2:65: `shadow_mode` does not belong in `rate_limit`: it is a key of a descriptor",
		}},
		{"extensions in the wrong map", []string{"domain: a\nalgorithm: x\ndescriptors: [{key: k, admission: x, rate_limit: {unit: day, values: [a], headers: []}}]\n"}, false, []string{
			"a.yaml:2:1: `algorithm` does not belong in the top of a rule file: it is a key of `rate_limit`",
			"a.yaml:3:24: `admission` does not belong in a descriptor: it is a key of the top of a rule file",
			"a.yaml:3:62: `values` does not belong in `rate_limit`: it is a key of a descriptor",
			"a.yaml:3:75: `headers` does not belong in `rate_limit`: it is a key of the top of a rule file",
		}},
		{"same key twice in a map", []string{"domain: a\ndescriptors:\n  - key: k\n    shadow_mode: true\n    shadow_mode: false\n    metadata: {x: 1, x: 2}\n"}, false, []string{
			"a.yaml:5:5: key `shadow_mode` twice in one map: the first is on line 4",
			"a.yaml:6:22: key `x` twice in one map: the first is on line 6",
		}},
		{"siblings twice", []string{"domain: a\ndescriptors:\n  - {key: k, value: v}\n  - {key: k}\n  - {key: k, value: v}\n  - {key: k, value: \"\"}\n"}, false, []string{
			"a.yaml:5:5: duplicate descriptor: key \"k\" and value \"v\" is already defined on line 3: write one descriptor",
			"a.yaml:6:5: duplicate descriptor: key \"k\" without a value is already defined on line 4: write one descriptor",
		}},
		{"domain twice in a file", []string{"domain: a\n---\ndomain: b\n---\ndomain: a\n"}, false, []string{
			"a.yaml:5:9: duplicate domain \"a\": it is already defined at a.yaml:1",
		}},
		{"domain in two files", []string{"domain: a\n", "domain: a\n", "domain: c\n"}, false, []string{
			"b.yaml:1:9: duplicate domain \"a\": it is already defined at a.yaml:1",
		}},
		{"merged domains with the same descriptor", []string{
			"domain: a\ndescriptors: [{key: k}, {key: j}]\n", "domain: a\ndescriptors: [{key: l}]\n", "domain: a\ndescriptors: [{key: l}, {key: j, value: x}]\n",
		}, true, []string{
			"c.yaml:2:15: duplicate descriptor: key \"l\" without a value is already defined in domain \"a\", at b.yaml:2",
		}},
		{"float", []string{"domain: a\ndescriptors: [{key: 1.5, rate_limit: {unit: day, requests_per_unit: 2.0}}]\n"}, false, []string{
			"a.yaml:2:21: `key` must be text, not the number 1.5: write it in quotes, \"1.5\"",
			"a.yaml:2:69: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not the number 2.0",
		}},
		{"number in quotes", []string{"domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: \"2\"}}]\n"}, false, []string{
			"a.yaml:2:67: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not the text \"2\"",
		}},
		{"too deep", []string{deep}, false, []string{"a.yaml:2:7"}},
		{"alias bomb", []string{bomb}, false, []string{"a.yaml:3:"}},
		{"alias within its anchor", []string{"domain: a\ndescriptors: &d\n  - key: k\n    descriptors: *d\n"}, false, []string{
			"a.yaml:4:18: the alias *d stands within its own anchor",
		}},
		{"merge within itself", []string{"domain: a\ndescriptors:\n  - &d\n    key: k\n    <<: *d\n    <<: {}\n"}, false, []string{
			"a.yaml:5:9", "a.yaml:6:5: key `<<` twice in one map",
		}},
		{"merge of a list item that is no map", []string{"domain: a\ndescriptors:\n  - {key: k, <<: [x]}\n  - {key: j, <<: 3}\n"}, false, []string{
			"a.yaml:3:19: `<<` merges maps, not the text \"x\"", "a.yaml:4:18: `<<` merges a map or a list of maps, not the number 3",
		}},
		{"an error behind an anchor is reported once", []string{"domain: a\ndescriptors:\n  - {key: a, rate_limit: &l {unit: eon}}\n  - {key: b, rate_limit: *l}\n  - {key: c, rate_limit: *l}\n"}, false, []string{
			"a.yaml:3:36: unknown unit \"eon\"",
		}},
		{"metadata that no answer can carry", []string{"domain: a\ndescriptors:\n  - {key: a, metadata: {x: .inf, y: !!binary gA==, [1]: 2}}\n  - {key: b, metadata: [1]}\n"}, false, []string{
			"a.yaml:3:28: `metadata` may hold", "a.yaml:3:37: `metadata` may hold", "a.yaml:3:52: a key in `metadata` must be text, not a list",
			"a.yaml:4:24: `metadata` must be a map, not a list",
		}},

		{"wrong indentation", []string{"domain: a\ndescriptors:\n  - key: k\n    value: x\n   rate_limit: {}\n"}, false, []string{"a.yaml:5:1: not YAML: did not find expected"}},
		{"tab", []string{"domain: a\ndescriptors:\n  - key: k\n\t  value: x\n"}, false, []string{"a.yaml:4:1: not YAML: found a tab character that violates indentation: a tab cannot indent: use spaces"}},
		{"star without quotes", []string{"domain: a\ndescriptors:\n  - key: k\n    value: *\n"}, false, []string{
			"a.yaml:4:1: not YAML: did not find expected alphabetic or numeric character: a value that starts with * or & must stand in quotes"}},
		{"star and letters without quotes", []string{"domain: a\ndescriptors:\n  - key: k\n    value: *foo\n  - key: j\n  - key: l\n"}, false, []string{
			"a.yaml:4:12: not YAML: unknown anchor 'foo' referenced: if the * is part of a value, put the value in quotes"}},
		{"unclosed bracket", []string{"domain: a\ndescriptors:\n  - {key: k\n  - key: j\n"}, false, []string{"a.yaml:3:5: not YAML: did not find expected ',' or '}'"}},
		{"unclosed quote", []string{"domain: a\ndescriptors:\n  - key: \"k\n  - key: j\n"}, false, []string{"a.yaml:3:1: not YAML: found unexpected end of stream: a quote is opened here and not closed"}},
		{"colon in a value", []string{"domain: a\ndescriptors:\n  - key: k\n    value: a: b\n"}, false, []string{"a.yaml:4:1: not YAML: mapping values are not allowed in this context"}},
		{"not UTF-8", []string{"domain: a\ndescriptors:\n  - key: k\xff\n"}, false, []string{"a.yaml:3:11: not YAML: invalid"}},
		{"control character", []string{"domain: a\ndescriptors:\n  - key: \x01\n"}, false, []string{"a.yaml:3:10: not YAML: control characters are not allowed"}},
		{"errors before the syntax error count too", []string{"domian: a\n---\n{\n"}, false, []string{
			"a.yaml:1:1: unknown key `domian`: did you mean `domain`?", "a.yaml:3:1: not YAML"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := filesOf(c.files...)
			start := time.Now()
			_, errs := Compile(files, CompileOptions{Merge: c.merge})
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			checkErrors(t, files, errs, c.want)
		})
	}
}

// A bad file is left out as a whole, and the other files are loaded.
func TestBadFilesAreLeftOut(t *testing.T) {
	tree, errs := Compile(filesOf("domain: a\n", "domain: b\n---\ndomain: a\n", "domain: c\n"), CompileOptions{})
	if len(errs) != 1 || tree.Domain("a") == nil || tree.Domain("b") != nil || tree.Domain("c") == nil {
		t.Errorf("errors %v, %d domains", errs, tree.Domains())
	}
}

func TestMergedDomains(t *testing.T) {
	tree, errs := Compile(filesOf(
		"domain: a\ndescriptors: [{key: k, value: x*, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
		"domain: a\ndescriptors: [{key: k, value: \"*\", rate_limit: {unit: day, requests_per_unit: 2}}]\n---\ndomain: a\ndescriptors: [{key: j, rate_limit: {unit: day, requests_per_unit: 3}}]\n",
	), CompileOptions{Merge: true})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	d := tree.Domain("a")
	for want, e := range map[uint64]descriptor.Entry{1: {Key: "k", Value: "xy"}, 2: {Key: "k", Value: "y"}, 3: {Key: "j", Value: "y"}} {
		if r := d.Match([]descriptor.Entry{e}); r == nil || r.Limits[0].Requests != want {
			t.Errorf("%v: %+v, want %d", e, r, want)
		}
	}
}

func TestTooManyErrors(t *testing.T) {
	text := "domain: a\ndescriptors:\n" + strings.Repeat("  - {}\n", 2*yamlform.MaxErrors)
	_, errs := Compile(filesOf(text), CompileOptions{})
	if len(errs) != yamlform.MaxErrors+1 || !strings.Contains(errs[yamlform.MaxErrors].Msg, fmt.Sprintf("%d more errors", yamlform.MaxErrors)) {
		t.Errorf("%d errors, the last %v", len(errs), errs[len(errs)-1])
	}
}
