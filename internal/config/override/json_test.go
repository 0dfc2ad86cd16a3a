package override

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The form for programs: the fields in this order, and nothing that is zero.
func TestAppendJSON(t *testing.T) {
	for want, o := range map[string]Override{
		`{"domain":"d","rule":"d.k","entries":[{"key":"k","value":"a"},{"key":"k"},{"value":"b"},{}],"requests_per_unit":"0","burst":"7","not_before":"2030-01-01T00:00:00Z","reason":"why"}`: {
			Identity: identity("d.k", "", "k", "a", "k", "", "", "b", "", ""), Numbers: Numbers{Kind: Replace, Burst: 7, NotBefore: 1893456000}, Reason: "why",
		},
		`{"domain":"d","rule":"d.k","limit":"l","entries":[{"key":"k","value":"b"}],"factor":0.000001,"expires_at":"9999-12-31T23:59:59Z","author":"ann","version":"9223372036854775807","changed_at":"2026-01-01T00:00:00.500Z"}`: {
			Identity: identity("d.k", "l", "k", "b"), Numbers: Numbers{Kind: Scale, Requests: 1, ExpiresAt: maxTime}, Author: "ann", Version: 1<<63 - 1, Changed: time.UnixMilli(1767225600500).UTC(),
		},
		`{"domain":"d","rule":"d.k","entries":[{"key":"k"}],"unlimited":true,"changed_at":"2026-01-01T00:00:00.000000001Z"}`: {
			Identity: identity("d.k", "", "k", ""), Numbers: Numbers{Kind: Unlimited}, Changed: time.Unix(1767225600, 1).UTC(),
		},
		`{"domain":"d","rule":"d.k","entries":[{"key":"k","value":"\"\\\b\t\n\f\r\u0000\u000b\u001f\u007f\u0085 \ufeff鍵🔑"}],"blocked":true}`: {
			Identity: identity("d.k", "", "k", "\"\\\b\t\n\f\r\x00\x0b\x1f\u007f\u0085\u2028\ufeff鍵🔑"), Numbers: Numbers{Kind: Blocked},
		},
	} {
		want = strings.NewReplacer(`\u007f`, "\x7f", `\u0085`, "\u0085", `\ufeff`, "\ufeff").Replace(want)
		got := AppendJSON([]byte("x"), &o)
		if diff := cmp.Diff("x"+want, string(got)); diff != "" {
			t.Error(diff)
		}
		back, err := ReadJSON(got[1:])
		if diff := cmp.Diff(&o, back); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	}
}

// Other JSON of the same meaning is read too, as jq or a person writes it.
func TestReadJSON(t *testing.T) {
	got, err := ReadJSON([]byte(` { "version":7, "burst" : "0" ,"limit":null,
		"entries":[ {"value":"\ud83d\udd11\/\ufffd", "key":"k"} , {} ],"factor":0,"unlimited":false,"blocked":false,"requests_per_unit":9007199254740991,
		"expires_at":"2030-01-01T01:00:00+01:00","rule":"d.k","\u0064omain":"d"} `))
	want := &Override{Identity: identity("d.k", "", "k", "🔑/\ufffd", "", ""), Numbers: Numbers{Kind: Replace, Requests: 1<<53 - 1, ExpiresAt: 1893456000}, Version: 7}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// item is the start of an override.
const item = `{"domain":"d","rule":"d.k","entries":[{"key":"k","value":"v"}],`

func TestLineErrors(t *testing.T) {
	for text, want := range map[string]string{
		"\n\n{x}":                                `o:3:2: here must be a text in quotes`,
		"{":                                      `o:1:2: here must be a text in quotes`,
		"{}":                                     `o:1:1: exactly one of requests_per_unit, factor, unlimited and blocked is needed`,
		"  {x}":                                  `o:1:4: here must be a text in quotes`,
		"{} {}":                                  `o:1:4: more than one JSON object: write one override on each line`,
		"{} é":                                   `o:1:4: more than one JSON object`,
		`{"blocked":true}`:                       `o:1:1: domain: it is missing`,
		strings.TrimSuffix(item, ",") + "}":      "o:1:1: exactly one of",
		item + `"blocked":true`:                  "o:1:78: here must be `}` or `,`",
		item + `"blocked":true,}`:                "o:1:79: here must be a text in quotes",
		item + `"blocked" true}`:                 "o:1:74: here must be `:`",
		item + `"blocked":truer}`:                "o:1:78: here must be `}` or `,`",
		item + `"blocked":"true"}`:               "o:1:74: blocked: it must be true or false",
		item + `"blocked":true,"x":1}`:           `o:1:79: unknown field "x"`,
		item + `"expiresAt":1}`:                  "o:1:64: unknown field \"expiresAt\": did you mean `expires_at`?",
		item + `"Blocked":true}`:                 "o:1:64: unknown field \"Blocked\": did you mean `blocked`?",
		item + `"blocked":true,"blocked":false}`: "o:1:79: the field blocked twice",
		item + `"burst":null,"burst":1}`:         "o:1:77: the field burst twice",
		item + `"burst":-1}`:                     "o:1:72: burst: it must be a whole number from 0 to 9007199254740991",
		item + `"burst":1.5}`:                    "o:1:72: burst: it must be a whole number",
		item + `"burst":1e3}`:                    "o:1:72: burst: it must be a whole number",
		item + `"burst":"0x10"}`:                 "o:1:72: burst: it must be a whole number",
		item + `"burst":007}`:                    "o:1:72: burst: it must be a whole number",
		item + `"burst":""}`:                     "o:1:72: burst: it must be a whole number",
		item + `"burst":18446744073709551616}`:   "o:1:72: burst: it must be a whole number",
		item + `"version":9223372036854775808}`:  "o:1:74: version: it must be a whole number from 0 to 9223372036854775807",
		item + `"requests_per_unit":9007199254740992}`:             "o:1:84: requests_per_unit: it must be a whole number from 0 to 9007199254740991",
		item + `"factor":1e300}`:                                   "o:1:1: factor: it must be at least 0.000001 and at most 1000",
		item + `"factor":1e400}`:                                   "o:1:73: factor: it must be a number like 1.5",
		item + `"factor":"NaN"}`:                                   "o:1:73: factor: it must be a number like 1.5",
		item + `"factor":.5}`:                                      "o:1:73: factor: it must be a number like 1.5",
		item + `"factor":-1}`:                                      "o:1:1: factor: it must be at least",
		item + `"factor":1e-9}`:                                    "o:1:1: factor: it must be at least",
		item + `"blocked":true,"factor":2}`:                        "o:1:1: exactly one of",
		item + `"blocked":true,"burst":2}`:                         "o:1:1: burst: it belongs to requests_per_unit",
		item + `"expires_at":"2030-01-01T00:00:00.5Z"}`:            "o:1:77: expires_at: it must be a whole second",
		item + `"not_before":"1969-01-01T00:00:00Z"}`:              "o:1:77: not_before: it must lie between the years 1970 and 9999",
		item + `"not_before":"tomorrow"}`:                          "o:1:77: not_before: it must be a time like",
		item + `"not_before":1893456000}`:                          "o:1:77: not_before: here must be a text in quotes",
		item + `"changed_at":"0001-01-01T00:00:00+01:00"}`:         "o:1:77: changed_at: it must be a time like",
		item + `"reason":"` + "a\tb" + `"}`:                        `o:1:73: reason: a control character in a text: write it as \u0009`,
		item + `"reason":"\q"}`:                                    `o:1:73: reason: invalid character 'q' in string escape code`,
		item + `"reason":"\ud800x"}`:                               `o:1:73: reason: half of a surrogate pair in a text`,
		item + `"reason":"x`:                                       `o:1:73: reason: a text without its end`,
		item + `"reason":"x\`:                                      `o:1:73: reason: a text without its end`,
		item + "\"reason\":\"\xff\"}":                              "o:1:1: it is not UTF-8",
		`{"entries":"k=v"}`:                                        `o:1:12: entries: it must be a list like [{"key": "tenant", "value": "acme"}]`,
		`{"entries":[{"k":"v"}]}`:                                  "o:1:14: entries: unknown field \"k\": write `key` or `value`",
		`{"entries":[{"key":"a","key":"b"}]}`:                      "o:1:24: entries: the field key twice",
		`{"entries":[{"key":1}]}`:                                  "o:1:20: entries: here must be a text in quotes",
		`{"entries":[{}`:                                           "o:1:15: entries: here must be `,` or `]`",
		`{"entries":[{},]}`:                                        "o:1:16: entries: here must be `{`",
		`{"entries":[` + strings.Repeat("{},", 33):                 "o:1:110: entries: more than 32",
		`{"entries":` + strings.Repeat("[", 100_000):               "o:1:13: entries: here must be `{`",
		"#\n" + item + `"reason":"` + strings.Repeat("r", maxLine): "o:2:1: a line of more than 1024 KiB",
		item + "\"blocked\":true}\n#\n" + item + `"factor":2}`:     "o:3:1: a second override for the same rule and entries: the first is on line 1",
	} {
		if all, errs := ReadFile("o", []byte(text)); len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want) {
			t.Errorf("%.200s: %v %v, want %s", text, all, errs, want)
		}
	}
}

// A file is YAML or has one override in the form for programs on each line. Its first bytes decide.
func TestFilesOfBothForms(t *testing.T) {
	const line = item + `"blocked":true}`
	want := []Override{{Identity: identity("d.k", "", "k", "v"), Numbers: Numbers{Kind: Blocked}}}
	for _, text := range []string{
		line, "# a copy\n\n  # of Redis\n " + line + " \r\n\n", strings.Replace(line, "{", "{ ", 1),
		"overrides: [{domain: d, rule: d.k, entries: k=v, blocked: true}]", `{"overrides": [{"domain": "d", "rule": "d.k", "entries": "k=v", "blocked": true}]}`,
		"# x\n{\n  overrides: [{domain: d, rule: d.k, entries: k=v, blocked: true}]}", "{'overrides': [{domain: d, rule: d.k, entries: k=v, blocked: true}]}",
	} {
		got, errs := readFile("o", []byte(text))
		if diff := cmp.Diff(want, got); diff != "" || len(errs) > 0 {
			t.Errorf("%s\n%v\n%s", text, errs, diff)
		}
	}
}

// No text makes the reader panic. Accepted text is JSON, and can be written and read again.
func FuzzReadJSON(f *testing.F) {
	f.Add([]byte(item + `"requests_per_unit":"5","burst":3,"reason":"r\u0000\ud83d\udd11","not_before":null}`))
	f.Add([]byte(`{"domain":"\u0085","rule":"\ud83d","entries":[{"key":"= ","value":"\u2028"},{}],"factor":1.5e0,"expires_at":"2030-01-01T00:00:00Z","version":3}`))
	f.Add([]byte(item + `"unlimited":true,"changed_at":"2030-01-01T00:00:00.123456+14:00"}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := ReadJSON(data)
		if err != nil {
			return
		}
		if !json.Valid(data) {
			t.Errorf("no JSON: %s", data)
		}
		text := AppendJSON(nil, o)
		back, err := ReadJSON(text)
		if diff := cmp.Diff(o, back); diff != "" || err != nil || !json.Valid(text) || bytes.ContainsAny(text, "\r\n") {
			t.Errorf("%v\n%s\n%s", err, diff, text)
		}
	})
}
