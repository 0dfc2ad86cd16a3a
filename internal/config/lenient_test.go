package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// said summarizes a tree: one line per rule with its number, unit and metadata.
func said(tree *descriptor.Tree) []string {
	var all []string
	for _, r := range tree.Rules {
		text := r.Path
		for _, l := range r.Limits {
			text += strings.TrimRight(fmt.Sprintf(" %d/%s %s", l.Requests, l.Window.Unit, l.Name), " ")
		}
		if r.Unlimited {
			text += " unlimited"
		}
		if r.Shadow {
			text += " shadow"
		}
		if r.Metadata != nil {
			text += fmt.Sprint(" ", r.Metadata)
		}
		all = append(all, text)
	}
	return all
}

// The lenient reader makes the same rules of each text as envoyproxy/ratelimit. A strict reader rejects it, and both
// give the position.
func TestLenientReadsAsTheReference(t *testing.T) {
	const day = "rate_limit: {unit: day, requests_per_unit: 3}"
	deep := strings.Repeat("{a: ", 33) + "1" + strings.Repeat("}", 33)
	cut := strings.Repeat("map[a:", 31) + "<nil>" + strings.Repeat("]", 31)
	for _, c := range []struct {
		name, text, want string
		places           string // positions of the warnings
	}{
		{"a value twice", "  - {key: k, value: v, value: w, " + day + "}", "d.k_w 3/day", "3:24"},
		{"a value, and none", "  - {key: k, value: v, value: , " + day + "}", "d.k 3/day", "3:24"},
		{"two rate limits are one", "  - {key: k, rate_limit: {unit: day, requests_per_unit: 3, name: n}, rate_limit: {unit: hour}}", "d.k 3/hour n", "3:70 3:83"},
		{"a rate limit, and none", "  - {key: k, " + day + ", rate_limit: }", "", "3:61"},
		{"a number twice", "  - {key: k, rate_limit: {unit: day, requests_per_unit: 5, requests_per_unit: 3}}", "d.k 3/day", "3:60"},
		{"a flag twice", "  - {key: k, " + day + ", shadow_mode: true, shadow_mode: false}", "d.k 3/day", "3:80"},
		{"lists replace each other", "  - {key: j, " + day + "}\ndescriptors:\n  - {key: k, " + day + "}", "d.k 3/day", "4:1"},
		{"metadata twice", "  - {key: k, " + day + ", metadata: {a: 1, b: 2}, metadata: {b: 3}}", "d.k 3/day map[a:1 b:3]", "3:85 3:96"},
		{"a key of metadata twice", "  - {key: k, " + day + ", metadata: {a: {b: 1}, a: {c: 2}}}", "d.k 3/day map[a:map[c:2]]", "3:83"},
		{"three times", "  - {key: i, key: j, key: k, " + day + "}", "d.k 3/day", "3:14 3:22"},
		{"a key within a rate limit", "  - {key: k, rate_limit: {unit: day, requests_per_unit: 3, shadow_mode: true}}", "d.k 3/day", "3:60"},
		{"keys of a rate limit beside it", "  - {key: k, unit: day, requests_per_unit: 3}", "", "3:14 3:25"},
		{"descriptors within a rate limit", "  - {key: k, rate_limit: {unit: day, requests_per_unit: 3, descriptors: [{key: j}]}}", "d.k 3/day", "3:60"},
		{"an odd unit beside unlimited", "  - {key: k, rate_limit: {unlimited: true, unit: junk}}", "d.k unlimited", "3:50"},
		{"numbers that are none", "  - {key: k, " + day + ", metadata: {a: .nan, b: -.inf, c: 1}}", "d.k 3/day map[a:<nil> b:<nil> c:1]", "3:75 3:84"},
		{"deep metadata", "  - {key: k, " + day + ", metadata: " + deep + "}", "d.k 3/day map[a:" + cut + "]", "3:199"},
		{"text after the end", "  - {key: k, " + day + "}\n...\njunk: [", "d.k 3/day", "4:1"},
		{"a limit and descriptors apart", "  - {key: k, value: v, " + day + "}\n  - {key: k, value: v, descriptors: [{key: j, " + day + "}]}", "d.k_v 3/day, d.k_v.j 3/day", "4:5"},
		{"descriptors and a limit apart", "  - {key: k, descriptors: [{key: j, " + day + "}]}\n  - {key: k, " + day + "}", "d.k 3/day, d.k.j 3/day", "4:5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "domain: d\ndescriptors:\n" + c.text + "\n"
			s := readSource("a.yaml", []byte(text), true)
			if len(s.errs) > 0 {
				t.Fatal(s.errs)
			}
			tree, errs := Compile(filesOf(text), CompileOptions{Lenient: true})
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if got := strings.Join(said(tree), ", "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			var places []string
			for _, w := range s.warnings {
				places = append(places, fmt.Sprintf("%d:%d", w.Line, w.Col))
			}
			if got := strings.Join(places, " "); got != c.places {
				t.Errorf("warnings at %s, want %s: %v", got, c.places, s.warnings)
			}
			checkPositions(t, filesOf(text), s.warnings)
			if _, errs := Compile(filesOf(text), CompileOptions{}); len(errs) == 0 {
				t.Error("a strict reader takes it")
			}
		})
	}
}

// Files that envoyproxy/ratelimit rejects are rejected by the lenient reader too.
func TestLenientRejects(t *testing.T) {
	const day = "rate_limit: {unit: day, requests_per_unit: 3}"
	for _, text := range []string{
		"  - {key: k, foo: 1, " + day + "}",
		"  - {key: k, burst: 3, " + day + "}", // envoyproxy/ratelimit ignores keys that it does not define
		"  - {key: k, rate_limit: {unlimited: true, unit: day}}",
		"  - {key: k, rate_limit: {unit: junk}}",
		"  - {key: k, " + day + "}\n  - {key: k, " + day + "}",
		"  - {key: k, value: v, " + day + ", descriptors: [{key: j}]}\n  - {key: k, value: v, descriptors: [{key: i}]}",
		"  - {key: 'k*', share_threshold: true, " + day + "}\n  - {key: 'k*', descriptors: [{key: i}]}",
		"  - &a {key: k, rate_limit: {unit: day}, descriptors: [*a]}",
	} {
		if _, errs := Compile(filesOf("domain: d\ndescriptors:\n"+text+"\n"), CompileOptions{Lenient: true}); len(errs) == 0 {
			t.Errorf("taken: %s", text)
		}
	}
}

// Scalars that YAML 1.1 and 1.2 read differently, and tags.
func TestScalarsOfOldYAML(t *testing.T) {
	tree, errs := Compile(filesOf(`domain: d
descriptors:
  - key: !mine k
    value: !!binary dg==
    rate_limit: {unit: day, requests_per_unit: 3}
    metadata: {a: yes, b: "yes", c: Off, d: !!str no, e: y, f: !!binary aGVsbG8=, g: !mine 7, h: !mine {x: !mine [on]}, i: yes please}
`), CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	want := map[string]any{"a": true, "b": "yes", "c": false, "d": "no", "e": true, "f": "hello", "g": "7", "h": map[string]any{"x": []any{true}}, "i": "yes please"}
	if diff := cmp.Diff(want, tree.Rules[0].Metadata); diff != "" || tree.Rules[0].Path != "d.k_v" {
		t.Errorf("%s, metadata (-want +got):\n%s", tree.Rules[0].Path, diff)
	}
	if _, errs := Compile(filesOf("domain: d\ndescriptors:\n  - {key: !!binary gA==}\n"), CompileOptions{}); len(errs) == 0 {
		t.Error("bytes that are no UTF-8 are taken for text")
	}
}

func TestDirectoryWarns(t *testing.T) {
	dir := t.TempDir()
	text := "domain: d\ndescriptors:\n  - {key: k, shadow_mode: true, rate_limit: {unit: day, shadow_mode: true}}\n"
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, strict := range []bool{false, true} {
		var log strings.Builder
		f := NewDirectory(Options{Dir: dir, Strict: strict, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		r, err := f.Load()
		if err != nil {
			t.Fatal(err)
		}
		status := r.Files[0]
		if strict {
			if status.State != descriptor.FileRejected || len(status.Errors) != 1 || len(status.Warnings) > 0 {
				t.Errorf("strict: %+v", status)
			}
			continue
		}
		if status.State != descriptor.FileLoaded || len(status.Errors) > 0 || len(status.Warnings) != 1 || !strings.Contains(status.Warnings[0], "a.yaml:3:57: `shadow_mode` does not belong in `rate_limit`") {
			t.Errorf("lenient: %+v", status)
		}
		if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "does not belong") {
			t.Errorf("the log does not warn: %s", log.String())
		}
	}
}

// Over xDS, a descriptor with the limit and a sibling with the nested descriptors are merged, as Envoy Gateway intends.
func TestResourcesJoinSiblings(t *testing.T) {
	limit := yamlform.Pairs{{Key: "unit", Value: "day"}, {Key: "requests_per_unit", Value: uint32(3)}}
	cidr := yamlform.Pairs{{Key: "key", Value: "masked_remote_address"}, {Key: "value", Value: "192.168.0.0/16"}}
	distinct := yamlform.Pairs{{Key: "key", Value: "remote_address"}, {Key: "rate_limit", Value: limit}}
	set := []Resource{{Name: "r", Rules: yamlform.Pairs{{Key: "domain", Value: "d"}, {Key: "descriptors", Value: []any{
		append(cidr[:2:2], yamlform.Pair{Key: "rate_limit", Value: limit}),
		append(cidr[:2:2], yamlform.Pair{Key: "descriptors", Value: []any{distinct}}),
	}}}}}
	r, err := NewResources(ResourceOptions{Logger: slog.New(slog.DiscardHandler)}).Apply(set)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"d.masked_remote_address_192.168.0.0/16 3/day", "d.masked_remote_address_192.168.0.0/16.remote_address 3/day"}
	if diff := cmp.Diff(want, said(r.Tree)); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}
