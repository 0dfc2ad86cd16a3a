package override

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func readLines(text string) (all []Override, err error) {
	for o, err := range Lines("o.yaml", strings.NewReader(text)) {
		if err != nil {
			return all, err
		}
		all = append(all, o)
	}
	return all, nil
}

// Lines takes what AppendLine writes, what the admin API shows, and the forms of a file.
func TestLines(t *testing.T) {
	got, err := readLines(`# a copy
overrides:
- {"domain":"d","rule":"d.k","entries":"k=a","requests_per_unit":0,"burst":7,"not_before":"2030-01-01T01:00:00+01:00","reason":"why"}

  {"domain":"d","rule":"d.k","limit":"l","entries":[{"key":"k","value":"b"},{"key":"k","value":""}],"factor":0.000001,"author":"ann","version":7,"changed_at":"2026-01-01T00:00:00.5Z"}
{"domain":"d","rule":"d.k","entries":[{"k":"c"},{"":""}],"blocked":true,"unlimited":false}
`)
	want := []Override{
		{Identity: identity("d.k", "", "k", "a"), Numbers: Numbers{Kind: Replace, Burst: 7, NotBefore: 1893456000}, Reason: "why"},
		{Identity: identity("d.k", "l", "k", "b", "k", ""), Numbers: Numbers{Kind: Scale, Requests: 1}, Author: "ann", Version: 7, Changed: time.UnixMilli(1767225600500).UTC()},
		{Identity: identity("d.k", "", "k", "c", "", ""), Numbers: Numbers{Kind: Blocked}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if none, err := readLines("overrides: []\n"); len(none) > 0 || err != nil {
		t.Errorf("%v %v", none, err)
	}
}

func TestLineErrors(t *testing.T) {
	const item = `{"domain":"d","rule":"d.k","entries":"k=v",`
	for text, want := range map[string]string{
		"\n\nx":                             "o.yaml:3: no JSON object",
		"- domain: d":                       "o.yaml:1: no JSON object",
		"- ":                                "o.yaml:1: no JSON object",
		"overrides: {}":                     "o.yaml:1: no JSON object",
		"{":                                 "o.yaml:1: unexpected EOF",
		"{} {}":                             "o.yaml:1: more than one value",
		"{}":                                "o.yaml:1: domain: it is missing",
		strings.TrimSuffix(item, ",") + "}": "o.yaml:1: one of requests_per_unit, factor",
		item + `"x":1}`:                     `o.yaml:1: json: unknown field "x"`,
		item + `"burst":-1}`:                "o.yaml:1: json: cannot unmarshal number -1",
		item + `"requests_per_unit":9007199254740992}`:                                         "o.yaml:1: requests_per_unit and burst: they must be at most 9007199254740991",
		item + `"factor":1e300}`:                                                               "o.yaml:1: factor: it must be above 0 and at most 1000",
		item + `"factor":-1}`:                                                                  "o.yaml:1: factor: it must be above 0 and at most 1000",
		item + `"blocked":true,"factor":2}`:                                                    "o.yaml:1: write only one of requests_per_unit, factor, unlimited and blocked",
		item + `"blocked":true,"burst":2}`:                                                     "o.yaml:1: burst: it belongs to requests_per_unit",
		item + `"blocked":true,"expires_at":"2030-01-01T00:00:00.5Z"}`:                         "o.yaml:1: expires_at: it must be a whole second",
		item + `"blocked":true,"not_before":"1969-01-01T00:00:00Z"}`:                           "o.yaml:1: not_before: it must lie between",
		item + `"blocked":true,"entries":"k"}`:                                                 "o.yaml:1: \"k\" has no value",
		item + `"blocked":true,"entries":[{"a":"b","c":"d"}]}`:                                 "o.yaml:1: entries: write",
		item + `"blocked":true,"entries":{"a":"b"}}`:                                           "o.yaml:1: entries: write",
		item + `"blocked":true,"entries":null}`:                                                "o.yaml:1: entries: there are none",
		item + `"blocked":true,"entries":[` + strings.Repeat(`{"k":"v"},`, 32) + `{"k":"v"}]}`: "o.yaml:1: entries: more than 32",
		item + "\"blocked\":true,\"reason\":\"\xff\"}":                                         "o.yaml:1: it is not UTF-8",
		"#\n" + item + `"reason":"` + strings.Repeat("r", maxLine):                             "o.yaml:2: a line of more than 1024 KiB",
		strings.Repeat("[", 100_000):                                                           "o.yaml:1: no JSON object",
		`{"a":` + strings.Repeat("[", 100_000):                                                 "o.yaml:1: ",
	} {
		if all, err := readLines(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.200s: %v %v, want %s", text, all, err, want)
		}
	}
}

// isYAML reports whether ReadFile reads what AppendLine writes.
func isYAML(o *Override) bool {
	return writableAsText(o.Entries) || !slices.ContainsFunc(o.Entries, func(e descriptor.Entry) bool { return len(e.Key) > maxYAMLKey })
}

// No file makes the process panic, and what is read can be written and read again, as lines and as YAML.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`- {"domain":"d","rule":"d.k","limit":"l","entries":"k=v,k=w","requests_per_unit":5,"burst":3,"reason":"r"}`))
	f.Add([]byte(`{"domain":"\u0085","rule":"\ud83d\udd11","entries":[{"key":"= ","value":"\u2028"}],"factor":1.5,"expires_at":"2030-01-01T00:00:00Z","version":3}`))
	f.Add([]byte("overrides:\n# x\n{\"unlimited\":true,\"entries\":[{}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := readLines(string(data))
		if err != nil {
			return
		}
		text := []byte("overrides: []\n")
		seen := make(map[string]bool)
		for i := range all {
			key := all[i].Domain + "\x00" + all[i].String()
			if seen[key] || all[i].Version < 0 || all[i].Changed.Year() > 9999 || all[i].Changed.Year() < 1 {
				return // a file has none of these
			}
			seen[key] = true
			if !isYAML(&all[i]) {
				return
			}
			if i == 0 {
				text = []byte("overrides:\n")
			}
			text = AppendLine(text, &all[i])
		}
		back, err := readLines(string(text))
		if diff := cmp.Diff(all, back); diff != "" || err != nil {
			t.Errorf("%v\n%s\n%s", err, diff, text)
		}
		asYAML, errs := ReadFile("o.yaml", text)
		if len(all) == 0 {
			asYAML = nil
		}
		if diff := cmp.Diff(all, asYAML); diff != "" || len(errs) > 0 {
			t.Errorf("%v\n%s\n%s", errs, diff, text)
		}
	})
}
