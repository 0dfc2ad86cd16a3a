package operator

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

var update = flag.Bool("update", false, "write testdata/rule_keys.txt anew; read it before it is kept")

// keyCase is a rule file with one key of the rule language, and a descriptor that reaches its rule.
type keyCase struct {
	domain string // keys of the domain
	rule   string // the descriptors; empty means plain
	ask    string // pairs of key=value; empty means k=a
}

const plain = `{key: k, rate_limit: {unit: day, requests_per_unit: 7}}`

// limited is a rule with these keys of its limit and of its descriptor.
func limited(limit string, keys ...string) keyCase {
	if !strings.Contains(limit, "unlimited") && !strings.Contains(limit, "max_in_flight") {
		if !strings.Contains(limit, "unit:") {
			limit += ", unit: day"
		}
		limit += ", requests_per_unit: 7"
	}
	return keyCase{rule: "{key: k, " + strings.Join(append(keys, "rate_limit: {"+strings.TrimPrefix(limit, ", ")+"}"), ", ") + "}"}
}

// described is a rule of seven a day whose descriptor has these keys.
func described(keys, ask string) keyCase {
	return keyCase{rule: "{key: k, " + keys + ", rate_limit: {unit: day, requests_per_unit: 7}}", ask: ask}
}

const reserving = "reservations: {%s: %s}"

// keyCases are the cases by map and key of the rule language. %s is replaced by each of the names that a key can have.
var keyCases = map[string]keyCase{
	"file.domain":           {},
	"file.descriptors":      {},
	"file.admission":        {domain: "admission: %s"},
	"file.on_error":         {domain: "on_error: %s"},
	"file.headers":          {domain: "headers: [%s]"},
	"file.request_override": {domain: "request_override: %s"},
	"file.refunds":          {domain: "refunds: %s"},
	"file.envoy_delay":      {domain: "envoy_delay: true", rule: "{key: k, rate_limit: {unit: day, requests_per_unit: 7, algorithm: leaky_bucket}}"},
	"file.regions":          {domain: "regions: {home: eu}", rule: "{key: k, rate_limit: {unit: day, requests_per_unit: 700}}"},
	"file.quota_buckets":    {domain: "quota_buckets: {order: [k]}"},

	"header.name":  {domain: "headers: [{name: X-Left, value: '{remaining}'}]"},
	"header.value": {domain: "headers: [{name: X-Limit, value: '{limit}/{capacity} {used} {reset} {window}'}]"},
	"header.of":    {domain: "headers: [{name: X-Left, value: '{remaining}', of: n}]", rule: "{key: k, rate_limit: {name: n, unit: day, requests_per_unit: 7}}"},
	"header.when":  {domain: "headers: [{name: X-Left, value: '{remaining}', when: %s}]"},

	"quota_buckets.order":   {domain: "quota_buckets: {order: [k, l]}"},
	"quota_buckets.default": {domain: "quota_buckets: {default: %s}"},

	"descriptor.key":             {rule: `{key: "k*", rate_limit: {unit: day, requests_per_unit: 7}}`},
	"descriptor.value":           described("value: a", ""),
	"descriptor.values":          described("values: [b, a]", ""),
	"descriptor.value_regex":     described("value_regex: 'a|b'", ""),
	"descriptor.value_cidr":      described("value_cidr: 10.0.0.0/8", "k=10.1.2.3"),
	"descriptor.rate_limit":      {},
	"descriptor.rate_limits":     {rule: "{key: k, rate_limits: [{name: n, unit: day, requests_per_unit: 7}, {name: m, unit: hour, requests_per_unit: 3}]}"},
	"descriptor.descriptors":     {rule: "{key: k, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 7}}]}", ask: "k=a,l=b"},
	"descriptor.shadow_mode":     described("shadow_mode: true", ""),
	"descriptor.quota_mode":      described("quota_mode: true", ""),
	"descriptor.detailed_metric": described("detailed_metric: true", ""),
	"descriptor.value_to_metric": described("value_to_metric: true", ""),
	"descriptor.share_threshold": described("value: 'a*', share_threshold: true", ""),
	"descriptor.condition":       described("value: a, condition: true", ""),
	"descriptor.fold_case":       described("fold_case: true", "k=A"),
	"descriptor.group":           described("group: 'ipv4/24,ipv6/56'", "k=10.1.2.3"),
	"descriptor.inherit":         {rule: plain + ", {key: k, value: a, inherit: true}"},
	"descriptor.on_error":        described("on_error: %s", ""),
	"descriptor.overridable":     described("overridable: true", ""),
	"descriptor.usage":           described("usage: true", ""),
	"descriptor.reservations":    described("reservations: true", ""),
	"descriptor.cost":            described("cost: {k: {a: 3, '*': 2}}", ""),
	"descriptor.metadata":        described("metadata: {b: c}", ""),

	"overridable.max": described("overridable: {max: 100}", ""),

	"reservations.ttl":             described(fmt.Sprintf(reserving, "ttl", "30s"), ""),
	"reservations.max_ttl":         described(fmt.Sprintf(reserving, "max_ttl", "2h"), ""),
	"reservations.max_share":       described(fmt.Sprintf(reserving, "max_share", "0.5"), ""),
	"reservations.max_outstanding": described(fmt.Sprintf(reserving, "max_outstanding", "5"), ""),
	"reservations.on_expire":       described(fmt.Sprintf(reserving, "on_expire", "%s"), ""),

	"limit.unit":              limited("unit: %s"),
	"limit.requests_per_unit": {},
	"limit.unlimited":         limited("unlimited: true"),
	"limit.name":              limited("name: n"),
	"limit.replaces":          limited("replaces: [{name: m}]"),
	"limit.unit_multiplier":   limited("unit_multiplier: 2"),
	"limit.algorithm":         limited("algorithm: %s"),
	"limit.max_in_flight":     limited("algorithm: concurrency, max_in_flight: 3, ttl: 5m"),
	"limit.ttl":               limited("algorithm: concurrency, max_in_flight: 3, ttl: 30s"),
	"limit.burst":             limited("algorithm: token_bucket, burst: 9"),
	"limit.refill":            limited("algorithm: token_bucket, refill: %s"),
	"limit.align":             limited("align: %s"),
	"limit.calendar":          limited("calendar: Europe/Berlin"),
	"limit.week_start":        limited("unit: week, calendar: UTC, week_start: %s"),
	"limit.precision":         limited("algorithm: sliding_window, precision: 2"),
	"limit.nodelay":           limited("algorithm: leaky_bucket, nodelay: all"),
	"limit.lease":             limited("lease: true"),
	"limit.regions":           limited("regions: {home: hash}"),
	"limit.active":            limited("active: {weekdays: [tuesday]}"),
	"limit.scale":             limited("scale: {by: k, max: 5}", "condition: true"),
	"limit.classes":           limited("classes: {by: k, guaranteed_percent: {a: 20}}", "condition: true"),
	"limit.penalty":           limited("penalty: 10m"),
	"limit.count_denied":      limited("count_denied: true"),
	"limit.shadow":            limited("shadow: true"),
	"limit.enforce_percent":   limited("enforce_percent: 30"),
	"limit.soft":              limited("soft: true"),
	"limit.warn_at":           limited("warn_at: 80"),

	"scale.by":  limited("scale: {by: k, max: 2}", "condition: true"),
	"scale.max": limited("scale: {by: k, max: 9}", "condition: true"),

	"regions.mode":               {rule: "{key: k, rate_limit: {unit: day, requests_per_unit: 700, regions: {mode: %s}}}"},
	"regions.home":               limited("regions: {home: eu}"),
	"classes.by":                 limited("classes: {by: k, guaranteed_percent: {b: 20}}", "condition: true"),
	"classes.guaranteed_percent": limited("classes: {by: k, guaranteed_percent: {a: 30, '*': 5}}", "condition: true"),

	"active.from":     limited("active: {from: 2026-03-01}"),
	"active.until":    limited("active: {until: 2026-12-01T18:00}"),
	"active.weekdays": limited("active: {weekdays: [%s]}"),
	"active.hours":    limited(`active: {hours: "22:00-06:00"}`),
	"active.zone":     limited(`active: {hours: "08:00-20:00", zone: Europe/Berlin}`),

	"replaces.name": limited("replaces: [{name: m}, {name: n}]"),
}

// The checksum of rules, /rlconfig and the output of `explain --json` do not change by accident: scripts read them, and
// replicas compare their checksums. There is a case for each key of the rule language, and for each name that it can
// have.
func TestRuleKeysAreWrittenAsBefore(t *testing.T) {
	const name = "rule_keys.txt"
	cases := maps.Clone(keyCases)
	var text bytes.Buffer
	for _, m := range config.Rules().Maps {
		for _, key := range m.Keys {
			id := m.Name + "." + key.Name
			c, has := cases[id]
			if !has {
				t.Errorf("no case for %s: add one", id)
				continue
			}
			delete(cases, id)
			names := key.Type.Names
			before := text.Len()
			if !strings.Contains(c.domain+c.rule, "%s") {
				names = []string{""}
			}
			for _, value := range names {
				// no value has the name ""; max_in_flight has a separate case
				if value == "" && len(names) > 1 || value == "concurrency" {
					continue
				}
				writeKey(t, &text, id, c, value)
			}
			if c.domain+c.rule != "" && !differs(text.String()[before:]) {
				t.Errorf("%s does not change the checksum of a rule: give it a row in internal/descriptor/facts.go", id)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(cases)) {
		t.Errorf("a case for %s, which is no key", id)
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, before := strings.Split(text.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(before)) {
		if i >= len(got) || i >= len(before) || got[i] != before[i] {
			t.Fatalf("%s:%d differs, if it is right: go test -update\nwant %s\ngot  %s", file, i+1, before[min(i, len(before)-1)], got[min(i, len(got)-1)])
		}
	}
}

// differs reports whether a value of a key changes the checksum of the plain rule.
func differs(written string) bool {
	const plainChecksum = "checksum 6729390344413467\n"
	return strings.Count(written, "\nchecksum ") > strings.Count(written, plainChecksum)
}

// writeKey writes the output of the three places for a case.
func writeKey(t *testing.T, to *bytes.Buffer, id string, c keyCase, value string) {
	t.Helper()
	if c.rule == "" {
		c.rule = plain
	}
	if c.ask == "" {
		c.ask = "k=a"
	}
	file := "{domain: d, " + c.domain
	if c.domain != "" {
		file += ", "
	}
	file = strings.ReplaceAll(file+"descriptors: ["+c.rule+"]}", "%s", value)
	tree, errs := config.Compile([]config.File{{Name: "f.yaml", Data: []byte(file)}}, config.CompileOptions{})
	if len(errs) > 0 {
		t.Errorf("%s %s: %v\n%s", id, value, errs[0], file)
		return
	}
	fmt.Fprintf(to, "== %s %s\n%s\nchecksum %d\n", id, value, file, tree.Checksum)
	writeRules(to, tree)
	var d limiter.Descriptor
	for _, pair := range strings.Split(c.ask, ",") {
		key, value, _ := strings.Cut(pair, "=")
		d.Entries = append(d.Entries, descriptor.Entry{Key: key, Value: value})
	}
	r, err := explain.Run(t.Context(), explain.Options{
		Tree: tree, Domain: "d", Descriptors: []limiter.Descriptor{d}, Now: time.Date(2026, 3, 10, 12, 0, 10, 0, time.UTC),
	})
	if err != nil {
		t.Errorf("%s: %v", id, err)
		return
	}
	if r.Matched() == 0 {
		t.Errorf("%s: %s matches no rule", id, c.ask)
	}
	var indented bytes.Buffer
	if err := explain.WriteJSON(&indented, r); err != nil {
		t.Fatal(err)
	}
	if err := json.Compact(to, indented.Bytes()); err != nil {
		t.Fatal(err)
	}
	to.WriteByte('\n')
}
