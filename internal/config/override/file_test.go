package override

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform/yamlformtest"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

func TestReadFile(t *testing.T) {
	got, errs := readFile("o.yaml", []byte(`# comments stay out of the way
overrides:
  - domain: api
    rule: api.tenant
    entries: tenant=acme,path=/v1
    requests_per_unit: 5000
    burst: 100
    not_before: 2026-03-01T12:00:00+02:00
    expires_at: 2026-04-01T00:00:00Z
    reason: moving day
    author: ann
  - {domain: api, rule: api.tenant, limit: hourly, entries: [tenant: acme, tenant: other], factor: 1.5}
  - {domain: api, rule: api.tenant, entries: "tenant=a\\,b", unlimited: yes, blocked: false}
  - {domain: api, rule: api.tenant, entries: tenant=, blocked: true, version: 7, changed_at: 2026-03-01T12:00:00.25Z}
`))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	at := func(text string) time.Time {
		t.Helper()
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	of := func(limit string, n Numbers, pairs ...string) Override {
		i := identity("api.tenant", limit, pairs...)
		i.Domain = "api"
		return Override{Identity: i, Numbers: n}
	}
	want := []Override{
		of("", Numbers{Kind: Replace, Requests: 5000, Burst: 100, NotBefore: at("2026-03-01T10:00:00Z").Unix(), ExpiresAt: at("2026-04-01T00:00:00Z").Unix()}, "tenant", "acme", "path", "/v1"),
		of("hourly", Numbers{Kind: Scale, Requests: One * 3 / 2}, "tenant", "acme", "tenant", "other"),
		of("", Numbers{Kind: Unlimited}, "tenant", "a,b"),
		of("", Numbers{Kind: Blocked}, "tenant", ""),
	}
	want[0].Reason, want[0].Author = "moving day", "ann"
	want[3].Version, want[3].Changed = 7, at("2026-03-01T12:00:00.25Z")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"overrides: []", "overrides: []\n---\n"} {
		if none, errs := readFile("o.yaml", []byte(text)); len(none) > 0 || len(errs) > 0 {
			t.Errorf("%q: %v %v", text, none, errs)
		}
	}
}

func TestReadFileErrors(t *testing.T) {
	const item = "overrides:\n- {domain: d, rule: d.k, entries: k=v, "
	for text, want := range map[string]string{
		"":                          "o.yaml:1:1: no `overrides`: write `overrides: []`",
		"overrides:":                "o.yaml:1:1: no `overrides`: write `overrides: []`",
		"override: []":              "o.yaml:1:1: unknown key `override`: did you mean `overrides`?",
		"overrides: {}":             "o.yaml:1:12: `overrides` must be a list, not a map",
		"overrides: []\n---\na: b":  "o.yaml:3:1: a second YAML document",
		"overrides: [":              "o.yaml:1:1: not YAML",
		"domain: d":                 "o.yaml:1:1: `domain` does not belong in the top of a file of overrides: it is a key of an override",
		item + "factor: 0}":         "o.yaml:2:48: `factor` must be a number above 0 and at most 1000, with at most six decimals, not the number 0",
		item + "factor: 1.1234567}": "o.yaml:2:48: `factor` must be",
		item + "factor: 1000.1}":    "o.yaml:2:48: `factor` must be",
		item + "factor: 1e3}":       "o.yaml:2:48: `factor` must be",
		item + "factor: half}":      "o.yaml:2:48: `factor` must be",
		item + "factor: -1}":        "o.yaml:2:48: `factor` must be",
		item + "factor: 99999999999999999999999}":                                                   "o.yaml:2:48: `factor` must be",
		item + "requests: 5}":                                                                       "o.yaml:2:40: unknown key `requests`",
		item + "request_per_unit: 5}":                                                               "o.yaml:2:40: unknown key `request_per_unit`: did you mean `requests_per_unit`?",
		item + "requests_per_unit: -5}":                                                             "o.yaml:2:59: `requests_per_unit` must be a whole number from 0 to 9007199254740991",
		item + "requests_per_unit: 5, factor: 2}":                                                   "o.yaml:2:70: write only one of `requests_per_unit`, `factor`, `unlimited` and `blocked`",
		item + "unlimited: true, blocked: true}":                                                    "o.yaml:2:66: write only one of",
		item + "factor: 2, burst: 1}":                                                               "o.yaml:2:58: `burst` belongs to `requests_per_unit`",
		item + "requests_per_unit: 5, burst: 0}":                                                    "o.yaml:2:69: `burst` must be a whole number from 1",
		item + "blocked: false}":                                                                    "o.yaml:2:3: exactly one of requests_per_unit, factor, unlimited and blocked is needed",
		item + "blocked: true, expires_at: tomorrow}":                                               "o.yaml:2:67: `expires_at` must be a time like",
		item + "blocked: true, expires_at: 2026-03-01}":                                             "o.yaml:2:67: `expires_at` must be a time like",
		item + "blocked: true, expires_at: 1969-03-01T00:00:00Z}":                                   "o.yaml:2:67: `expires_at`: it must lie between",
		item + "blocked: true, expires_at: 2026-03-01T00:00:00.5Z}":                                 "o.yaml:2:67: `expires_at`: it must be a whole second",
		item + "blocked: true, not_before: 2026-03-02T00:00:00Z, expires_at: 2026-03-01T00:00:00Z}": "o.yaml:2:3: expires_at: it is not after not_before",
		item + "blocked: true, reason: " + strings.Repeat("r", MaxText+1) + "}":                     "o.yaml:2:3: reason: more than 512 bytes",
		"overrides:\n- {rule: d.k, entries: k=v, blocked: true}":                                    "o.yaml:2:3: domain: it is missing",
		"overrides:\n- {domian: d, rule: d.k, entries: k=v, blocked: true}":                         "o.yaml:2:4: unknown key `domian`: did you mean `domain`?",
		"overrides:\n- {domain: d, rule: d.k, entries: k, blocked: true}":                           "o.yaml:2:35: \"k\" has no value",
		"overrides:\n- {domain: d, rule: d.k, entries: [k], blocked: true}":                         "o.yaml:2:36: an entry of a descriptor must be a map",
		"overrides:\n- &a {domain: d, rule: d.k, entries: k=v, blocked: true}\n- *a":                "o.yaml:3:3: a second override for the same rule and entries: the first is on line 2",
		"overrides:\n- {domain: d, rule: d.k, entries: k=v, blocked: true}\n- {domain: d, rule: d.k, entries: [k: v], factor: 2}": "o.yaml:3:3: a second override for the same rule and entries: the first is on line 2",
		"#" + strings.Repeat(" ", MaxFileSize): "o.yaml: larger than 16 MiB",
	} {
		got, errs := readFile("o.yaml", []byte(text))
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want) || got != nil {
			t.Errorf("%.200s\ngot  %v %v\nwant %s", text, got, errs, want)
		}
	}
	if placed, errs := ReadFile("o.yaml", []byte(item+"blocked: true}\n- {domain: d}")); len(placed) != 1 || placed[0].At.Line != 2 || len(errs) != 1 {
		t.Errorf("beside a mistake: %v %v", placed, errs)
	}
}

// drawName draws names that people and attackers choose.
func drawName(t *rapid.T, label string) string {
	return rapid.OneOf(
		rapid.StringMatching(`[a-z]{1,8}`),
		rapid.String(),
		rapid.SampledFrom([]string{"null", "~", "Yes", "off", "true", "1", "1.5", "0x1f", ".inf", "<<", "=", "-", "- a", "? a", "a: b", "a #b", "a,b", "a=b", " a", "a ", `a\,b`, `a\`, "\x00", "\x1b[31m", "\r\n", "\u0085",
			"\u2028", "\ufeff", "\ufffe", "\U0001f600", "\U000e0001", "<script>alert(1)</script>", "'", `"`, "{}", "[", "&a", "*a", "!!binary eA==", "%YAML", "---", "...", "@", "`", "2026-03-01", strings.Repeat("\x01", 200), strings.Repeat("k", MaxName)}),
	).Draw(t, label)
}

// Every override survives writing and reading, with all kinds of names: as a file, and as lines.
func TestWhatIsWrittenIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []Override
		seen := make(map[string]bool)
		for range rapid.IntRange(0, 4).Draw(t, "overrides") {
			o := Override{
				Identity: Identity{Domain: drawName(t, "domain"), Rule: drawName(t, "rule"), Limit: drawName(t, "limit")},
				Reason:   rapid.OneOf(rapid.Just(""), rapid.StringN(0, 100, MaxText)).Draw(t, "reason"),
				Author:   rapid.StringN(0, 100, MaxText).Draw(t, "author"),
				Version:  rapid.Int64Min(0).Draw(t, "version"),
			}
			for range rapid.IntRange(1, 4).Draw(t, "entries") {
				o.Entries = append(o.Entries, descriptor.Entry{Key: drawName(t, "key"), Value: drawName(t, "value")})
			}
			switch o.Kind = rapid.SampledFrom([]Kind{Replace, Scale, Unlimited, Blocked}).Draw(t, "kind"); o.Kind {
			case Replace:
				o.Requests, o.Burst = rapid.Uint64Max(descriptor.MaxRequests).Draw(t, "requests"), rapid.Uint64Max(descriptor.MaxRequests).Draw(t, "burst")
			case Scale:
				o.Requests = rapid.Uint64Range(1, MaxFactor*One).Draw(t, "factor")
			}
			o.NotBefore = rapid.Int64Range(0, maxTime-1).Draw(t, "not before")
			if rapid.Bool().Draw(t, "expires") {
				o.ExpiresAt = rapid.Int64Range(o.NotBefore+1, maxTime).Draw(t, "expires")
			}
			if rapid.Bool().Draw(t, "changed") {
				o.Changed = time.Unix(rapid.Int64Range(0, maxTime).Draw(t, "at"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
			}
			key := string(o.appendTo(nil))
			if o.Validate() != nil || seen[key] {
				continue
			}
			seen[key] = true
			all = append(all, o)
		}
		text := AppendYAML(nil, all)
		back, errs := readFile("o.yaml", text)
		if len(errs) > 0 {
			t.Fatalf("%v\n%s", errs, text)
		}
		if len(all) == 0 {
			all = []Override{}
		}
		if diff := cmp.Diff(all, back); diff != "" {
			t.Fatalf("%s\n%s", diff, text)
		}
		if len(all) == 0 {
			return
		}
		text = nil
		for i := range all {
			text = append(AppendJSON(text, &all[i]), '\n')
		}
		back, errs = readFile("o.yaml", text)
		if diff := cmp.Diff(all, back); diff != "" || len(errs) > 0 {
			t.Fatalf("%v\n%s\n%s", errs, diff, text)
		}
	})
}

// The form that people meet: one line for each key, and quotes only where they are needed.
func TestAppendYAMLIsReadable(t *testing.T) {
	racetest.Sequential(t)
	o := Override{Identity: identity("api.tenant", "", "tenant", "acme", "path", "/v1/messages"), Numbers: Numbers{Kind: Scale, Requests: One / 2}, Reason: "they move today", Author: "ann"}
	awkward := Override{Identity: identity("d.*", "null", "a=b", "x", "", "y"), Numbers: Numbers{Kind: Blocked, ExpiresAt: 1_800_000_000}}
	const want = `overrides:
  - domain: d
    rule: api.tenant
    entries: tenant=acme,path=/v1/messages
    factor: 0.5
    reason: "they move today"
    author: ann
  - domain: d
    rule: "d.*"
    limit: "null"
    entries:
      - "a=b": "x"
      - "": "y"
    blocked: true
    expires_at: 2027-01-15T08:00:00Z
`
	if diff := cmp.Diff(want, string(AppendYAML(nil, []Override{o, awkward}))); diff != "" {
		t.Error(diff)
	}
	if got := string(AppendYAML(nil, nil)); got != "overrides: []\n" {
		t.Errorf("%q", got)
	}
}

// Reading a hostile file costs work in proportion to its size, and gives a bounded number of errors.
func TestHostileFiles(t *testing.T) {
	tests := yamlformtest.Language{List: "overrides", Item: "domain: d, rule: d.k, entries: k=v, blocked: true", Key: "limit"}
	tests.Test(t, func(data []byte) int {
		_, errs := readFile("o.yaml", data)
		return len(errs)
	})
}

// No file makes the reader panic, and the overrides in it can be written and read again.
func FuzzReadFile(f *testing.F) {
	f.Add([]byte("overrides:\n- {domain: d, rule: d.k, limit: l, entries: 'k=v,k=w', requests_per_unit: 5, burst: 3, reason: r}\n- {domain: d, rule: d.k, entries: [{'': v}], factor: 1.5, expires_at: 2030-01-01T00:00:00Z, version: 3}"))
	f.Add([]byte("overrides: &a [{<<: *a, blocked: yes}]"))
	f.Add([]byte("overrides: [{domain: !!binary eA==, rule: !x y, entries: {}, unlimited: on}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, errs := readFile("o.yaml", data)
		for _, e := range errs {
			if e.Line < 1 || e.Col < 1 || e.Msg == "" {
				t.Errorf("%v", e)
			}
		}
		if len(errs) > 0 {
			return
		}
		text := AppendYAML(nil, all)
		back, errs := readFile("o.yaml", text)
		if diff := cmp.Diff(all, back); diff != "" || len(errs) > 0 {
			t.Errorf("%v\n%s\n%s", errs, diff, text)
		}
	})
}

// readFile reads a file, and drops the positions of the overrides.
func readFile(name string, data []byte) ([]Override, []*yamlform.Error) {
	placed, errs := ReadFile(name, data)
	if len(errs) > 0 {
		return nil, errs
	}
	all := make([]Override, len(placed))
	for i := range placed {
		all[i] = placed[i].Override
	}
	return all, nil
}
