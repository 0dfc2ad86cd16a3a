package ruleschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/authoring/ruletest"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

var update = flag.Bool("update", false, "write the schemas, and the generated parts of docs/, anew")

const top = "../../../"

func resolve(t *testing.T, s *jsonschema.Schema) *jsonschema.Resolved {
	t.Helper()
	b, err := Write(s) // validates the text that Write returns
	if err != nil {
		t.Fatal(err)
	}
	var read jsonschema.Schema
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	r, err := read.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// validate returns the errors that a schema finds in a YAML file, as an editor does: in each document separately.
func validate(r *jsonschema.Resolved, text []byte) error {
	documents, err := yamlform.Decode(text)
	if err != nil {
		return err
	}
	if len(documents) == 0 {
		return errors.New("no documents")
	}
	for _, v := range documents {
		asJSON, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(asJSON, &v); err != nil {
			return err
		}
		if err := r.Validate(v); err != nil {
			return err
		}
	}
	return nil
}

func yamlFiles(t *testing.T, dir string, tests bool) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, ".yaml") && strings.HasSuffix(name, "_test.yaml") == tests {
			files = append(files, name)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatal(dir, err)
	}
	return files
}

func accepts(t *testing.T, s *jsonschema.Schema, files []string) {
	t.Helper()
	r := resolve(t, s)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(r, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRulesAcceptsOurs(t *testing.T) {
	accepts(t, Rules(), append(yamlFiles(t, top+"config", false), yamlFiles(t, "../ruletest/testdata/pass", false)...))
}

func TestTestsAcceptsOurs(t *testing.T) {
	accepts(t, Tests(), append(yamlFiles(t, top+"config", true), yamlFiles(t, "../ruletest/testdata/pass", true)...))
}

// compiles returns the error with which the service rejects a rule file.
func compiles(text []byte) error {
	_, errs := config.Compile([]config.File{{Name: "a.yaml", Data: text}}, config.CompileOptions{})
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

// beyond are the errors of check that no schema can see, by the name of the file in rule-files.json or in mistakes/.
var beyond = map[string]string{
	"duplicate-key-value/0":                     "two descriptors of a list are the same",
	"duplicate-key/0":                           "two descriptors of a list are the same",
	"duplicate-nested/0":                        "two descriptors of a list are the same",
	"09-the-same-descriptor-twice.yaml":         "two descriptors of a list are the same",
	"A5-a-limit-and-its-levels-apart.yaml":      "two descriptors of a list are the same",
	"replaces-itself/0":                         "a name beside a list that has it",
	"21-replaces-names-its-own-limit.yaml":      "a name beside a list that has it",
	"18-a-network-written-with-an-address.yaml": "arithmetic on a network's bits",
	"19-a-bracket-left-open-in-an.yaml":         "the grammar of expressions",
	"22-two-limits-that-would-be-one.yaml":      "arithmetic on windows",

	"70-an-end-before-the-beginning.yaml":          "arithmetic on times",
	"60-a-capture-group-that-the.yaml":             "the grammar of expressions",
	"81-a-capture-group-in-an.yaml":                "the size of an expression",
	"61-a-group-that-is-wider-than.yaml":           "arithmetic on a network's bits",
	"57-inherit-without-a-descriptor-to-take.yaml": "what stands beside a descriptor",
	"74-inherit-without-the-group-of.yaml":         "what stands beside a descriptor",
	"65-a-header-twice.yaml":                       "a name beside the headers of a family",
	"79-a-cost-without-the-other-values.yaml":      "which values a level matches",
	"80-a-cost-by-an-entry-that-is-not-there.yaml": "the keys of the levels above",
	"84-a-scale-by-a-value.yaml":                   "what the level with the number has",
	"97-permits-of-a-small-limit.yaml":             "arithmetic on windows and regions",
}

func TestRulesAgreesWithRecordedVerdicts(t *testing.T) {
	b, err := os.ReadFile("../../config/testdata/rule-files.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name  string
		Files []string
	}
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	r := resolve(t, Rules())
	for _, c := range cases {
		for i, text := range c.Files {
			agree(t, r, fmt.Sprintf("%s/%d", c.Name, i), []byte(text))
		}
	}
}

func TestRulesDeniesTypicalMistakes(t *testing.T) {
	r := resolve(t, Rules())
	for _, name := range yamlFiles(t, "../rulecheck/testdata/mistakes", false) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		agree(t, r, filepath.Base(name), text)
	}
}

// agree reports where a schema and the service disagree about a file, except about errors that no schema can find.
func agree(t *testing.T, r *jsonschema.Resolved, name string, text []byte) {
	t.Helper()
	denied, wrong := validate(r, text), compiles(text)
	why, known := beyond[name]
	switch {
	case denied != nil && wrong == nil:
		t.Errorf("%s: the service takes what the schema denies: %v\n%s", name, denied, text)
	case denied == nil && wrong != nil && !known:
		t.Errorf("%s: the schema takes what the service denies: %v\n%s", name, wrong, text)
	case known && (denied != nil || wrong == nil):
		t.Errorf("%s is not beyond the schema (%s): the service says %v, the schema %v", name, why, wrong, denied)
	}
}

// TestRulesRelations asks for every key with every algorithm, and some more combinations: where the service denies, so
// does the schema, and nowhere else.
func TestRulesRelations(t *testing.T) {
	r := resolve(t, Rules())
	var limits []string
	keys := []string{"burst: 5", "burst: 0", "refill: interval", "refill: greedy", "refill: interval, align: first_hit", "align: first_hit", "align: clock",
		"calendar: UTC", "precision: 3", "precision: 61", "nodelay: 2", "nodelay: all", "nodelay: some", "count_denied: true", "lease: yes", "lease: maybe",
		"unit_multiplier: 0", "unit_multiplier: 2", "burst:", "burst: -1", "burst: 1.5", "calendar: UTC, unit_multiplier: 2", "calendar: UTC, align: first_hit",
		"penalty: 10m", "penalty: 10m, lease: yes", "penalty: 10m, soft: true", "penalty: 10m, shadow: true", "penalty: soon", "penalty:",
		"week_start: sunday", "calendar: UTC, week_start: sunday", "calendar: UTC, week_start: someday", "calendar: UTC, week_start: monday, unit_multiplier: 2", "week_start:"}
	for _, a := range append([]string{""}, descriptor.AlgorithmNames...) {
		for _, k := range keys {
			for _, unit := range []string{"day", "Minute", "MONTH", "Week"} {
				limit := "unit: " + unit + ", requests_per_unit: 60, " + k
				if a != "" {
					limit += ", algorithm: " + a
				}
				limits = append(limits, limit)
			}
		}
	}
	limits = append(limits, "unlimited: true", "unlimited: true, unit: day", "unlimited: false", "unlimited: no, unit: day", "unlimited: true, burst: 3",
		"unlimited: true, requests_per_unit: 3", "unlimited: true, name: x", "unlimited: on, algorithm: token_bucket", "requests_per_unit: 3", "unit: fortnight, requests_per_unit: 1",
		"unit: second", "unit:", "unit: '', requests_per_unit: 3", "unit: day, requests_per_unit: 4294967296", "unit: day, requests_per_unit: -1", "unit: day, requests_per_unit: many",
		"unit: day, nane: x", "unit: day, replaces: [{name: y}]", "unit: day, replaces: [{nam: y}]", "unit: day, replaces: y", "unit: day, replaces: []", "unit: day, algorithm: bucket",
		"unit: day, name: 7", "unit: day, name: 1.5", "unit: day, name: [x]")
	const places = "algorithm: concurrency, max_in_flight: 3, ttl: 1m"
	for _, k := range append(keys, "unit: day", "unit: ''", "requests_per_unit: 0", "unit_multiplier: 3", "name: x", "replaces: [{name: y}]", "lease: no", "unlimited: true", "unlimited: false", "ttl2: 5") {
		limits = append(limits, places+", "+k)
	}
	limits = append(limits, places, "algorithm: concurrency", "algorithm: concurrency, max_in_flight: 3", "algorithm: concurrency, ttl: 1m", "max_in_flight: 3, ttl: 1m", "ttl: 1m",
		"unit: day, max_in_flight: 3", "unit: day, ttl: 1m, algorithm: token_bucket", "algorithm: concurrency, max_in_flight: 0, ttl: 1m", "algorithm: concurrency, max_in_flight: 65537, ttl: 1m",
		"algorithm: concurrency, max_in_flight: 3, ttl: 60", "algorithm: concurrency, max_in_flight: 3, ttl: 1h30m", "algorithm: concurrency, max_in_flight: 3, ttl: 1h30s",
		"algorithm: concurrency, max_in_flight: 3, ttl: ''", "algorithm: concurrency, max_in_flight: 3, ttl:", "algorithm: concurrency, max_in_flight: 3, ttl: 1.5s")
	for _, l := range limits {
		agree(t, r, l, []byte("domain: d\ndescriptors:\n  - {key: k, rate_limit: {"+l+"}}\n"))
		agree(t, r, "listed: "+l, []byte("domain: d\ndescriptors:\n  - {key: k, rate_limits: [{name: z, "+l+"}]}\n"))
	}
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}"
	for _, d := range []string{
		"key: k", "value: v", "key: ''", "key:", "key: 7", "key: 1.5", "key: k, value: v, values: [a]", "key: k, value: '', values: [a]", "key: k, value:, values: [a]",
		"key: k, values: [a, b]", "key: k, values: []", "key: k, values: [a, a]", "key: k, values: ['a*']", "key: k, values: ['']", "key: k, values: a", "key: k, values: [1.5]", "key: k, values: [7, true]",
		"key: k, value_cidr: 10.0.0.0/8", "key: k, value_cidr: ten", "key: k, value_cidr: 10.0.0.0/8, value_regex: a", "key: k, value_regex: 'a.*'",
		"key: k, fold_case: true", "key: k, fold_case: true, value: V", "key: k, fold_case: yes, value_cidr: 10.0.0.0/8", "key: k, fold_case: no, value_cidr: 10.0.0.0/8", "key: 'k*', fold_case: true",
		"key: k, fold_case: true, group: ipv6/64", "key: k, fold_case: true, group: $1, value_regex: (a)", "key: k, fold_case: true, condition: true", "key: k, fold_case: true, values: [a], share_threshold: true",
		"key: k, group: ipv6/64", "key: k, group: 'ipv4/24, ipv6/64'", "key: k, group: ipv6/64, value: v", "key: k, group: ipv6/64, value: 'v*'", "key: k, group: ipv6/64, value: ''", "key: k, group: ipv6/64, values: [v]",
		"key: k, group: ipv6/64, value_regex: .*", "key: k, group: ipv4/24, value_cidr: 10.0.0.0/8", "key: k, group:", "key: k, group: ''", "key: k, group: ipv6/129", "key: k, group: 64", "key: k, group: [ipv6/64]", "key: 'k*', group: ipv6/64",
		"key: k, group: ipv6/64, condition: true", "key: k, group: ipv6/64, condition: false", "key: k, group: ipv6/64, value: 'v*', share_threshold: true", "key: k, group: $1", "key: k, group: $1, value: 'v*'", "key: k, group: $1, value_regex: (a)",
		"key: k, group: $1, value_regex: (a), usage: true", "key: k, group: $1, value_regex: (a), overridable: true", "key: k, group: $1, value_regex: (a), overridable: {max: 3}", "key: k, group: $1, value_regex: (a), overridable: false", "key: k, group: ipv6/64, overridable: true, usage: true",
		"key: k, share_threshold: true", "key: 'k*', share_threshold: true", "key: 'k*'", "key: 'k*', value: 'v*'", "key: 'k*', values: [a]", "key: 'k*', values:", "key: 'k*', value_cidr: 10.0.0.0/8", "key: 'k*', value_regex: a", "key: k, value: v, share_threshold: true", "key: k, value: 'v*', share_threshold: true", "key: k, values: [a], share_threshold: true", "key: k, share_threshold: false",
		"key: k, on_error: deny", "key: k, on_error: deny, " + limit, "key: k, on_error: panic, " + limit, "key: k, on_error:, " + limit,
		"key: k, rate_limits: []", "key: k, " + limit + ", rate_limits: [{name: a, unit: day, requests_per_unit: 1}]", "key: k, rate_limits: [{unit: day, requests_per_unit: 1}]",
		"key: k, rate_limits: {unit: day}", "key: k, rate_limit: []", "key: k, rate_limit:", "key: k, metadata: {a: [1, {b: c}]}", "key: k, metadata: x", "key: k, metadata:",
		"key: k, descriptors: [{key: j}]", "key: k, descriptors: {key: j}", "key: k, descriptors:", "key: k, descriptors: [{kee: j}]", "key: k, shadow_mode: yes, " + limit, "key: k, shadow_mode: 1, " + limit,
		"key: k, reservations: true, " + limit, "key: k, reservations: no, cost: {a: 1}, " + limit, "key: k, reservations: {}, cost: {a: 0.1, b: 4}, " + limit, "key: k, cost: {a: 1}, " + limit,
		"key: k, reservations: true, cost: {}, " + limit, "key: k, reservations: true, cost: {a: -1}, " + limit, "key: k, reservations: true, cost: {a: 1000001}, " + limit,
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, scale: {by: k, max: 5}}", "key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, scale: {by: k}}", "key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, scale: {max: 5}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, scale: {by: k, max: 0}}", "key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, scale: {by: k, max: 1.5}}", "key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, scale: k}", "key: k, rate_limit: {unit: day, requests_per_unit: 1, scale: }",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, lease: true, scale: {by: k, max: 5}}", "key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, lease: no, scale: {by: k, max: 5}}", "key: k, condition: true, rate_limit: {unlimited: true, scale: {by: k, max: 5}}",
		"key: k, condition: true, overridable: true, rate_limit: {unit: day, requests_per_unit: 1, scale: {by: k, max: 5}}", "key: k, condition: true, overridable: no, rate_limit: {unit: day, requests_per_unit: 1, scale: {by: k, max: 5}}", "key: k, condition: true, rate_limit: {algorithm: concurrency, max_in_flight: 3, ttl: 1m, scale: {by: k, max: 5}}",
		"key: k, condition: true, overridable: true, rate_limits: [{name: a, unit: day, requests_per_unit: 1}, {name: b, unit: hour, requests_per_unit: 1, scale: {by: k, max: 5}}]", "key: k, cost: 1, " + limit, "key: k, cost: 1000000, " + limit, "key: k, cost: 1000001, " + limit, "key: k, cost: 0, " + limit, "key: k, cost: 1.5, " + limit, "key: k, cost: '1', " + limit, "key: k, cost: [1], " + limit,
		"key: k, cost: {k: {a: 2, '*': 1}}, " + limit, "key: k, cost: {k: {a: ~, '*': 1}}, " + limit, "key: k, cost: {k: {'*': 0}}, " + limit, "key: k, cost: {k: {'*': 1.5}}, " + limit, "key: k, cost: {k: {}}, " + limit, "key: k, cost: {k: ~}, " + limit, "key: k, cost: {k: [1]}, " + limit,
		"key: k, cost: {k: {'*': 1}, a: 2}, " + limit, "key: k, reservations: true, cost: {k: {'*': 1}, a: 0.5}, " + limit, "key: k, cost: 2, rate_limit: {unlimited: true}", "key: k, cost: {k: {'*': 2}}, rate_limit: {unlimited: true}",
		"key: k, cost: 2, rate_limit: {algorithm: concurrency, max_in_flight: 3, ttl: 1m}", "key: k, cost: {k: {'*': 2}}, rate_limits: [{name: a, unit: day}, {name: b, algorithm: concurrency, max_in_flight: 3, ttl: 1m}]", "key: k, reservations: true, cost: {a: 2}, rate_limit: {algorithm: concurrency, max_in_flight: 3, ttl: 1m}",
		"key: k, reservations: true, cost: 1, " + limit, "key: k, reservations: true, cost: {a: '1'}, " + limit, "key: k, reservations: true, cost:, " + limit,
		"key: k, reservations: {ttl: 30s, max_ttl: 1h30m, max_share: 0.1, max_outstanding: 5, on_expire: release}, " + limit, "key: k, reservations: {ttl: 30}, " + limit,
		"key: k, reservations: {ttl: 1.5s}, " + limit, "key: k, reservations: {max_share: 0}, " + limit, "key: k, reservations: {max_share: 1.5}, " + limit, "key: k, reservations: {max_outstanding: 0}, " + limit,
		"key: k, reservations: {on_expire: keep}, " + limit, "key: k, reservations: {tll: 1m}, " + limit, "key: k, reservations: 1m, " + limit,
		"key: k, reservations: true, rate_limit: {unlimited: true}", "key: k, reservations: true, rate_limit: {unit: day, requests_per_unit: 1, lease: true}", "key: k, reservations: off, rate_limit: {unit: day, requests_per_unit: 1, lease: true}",
		"key: k, reservations: true, rate_limit: {unit: day, requests_per_unit: 1, algorithm: leaky_bucket}", "key: k, reservations: true, rate_limit: {unit: day, requests_per_unit: 1, count_denied: true}",
		"key: k, reservations: true, rate_limit: {unit: day, requests_per_unit: 1, count_denied: false, lease: no}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k, guaranteed_percent: {a: 20, '*': 5}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: k}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes:}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k, guaranteed_percent: {}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k, guaranteed_percent: 20}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k, guaranteed_percent: {a: 0}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k, guaranteed_percent: {a: 101}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k, guaranteed_percent: {a: 1.5}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, lease: true, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, align: first_hit, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, align: clock, count_denied: false, lease: no, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, count_denied: true, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, calendar: UTC, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, algorithm: sliding_window, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, rate_limit: {unit: day, requests_per_unit: 1, algorithm: fixed_window, penalty: 10m, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, condition: true, reservations: true, rate_limit: {unit: day, requests_per_unit: 1, classes: {by: k, guaranteed_percent: {a: 20}}}", "key: k, condition: true, rate_limit: {unlimited: true, classes: {by: k, guaranteed_percent: {a: 20}}}", "key: k, condition: true, rate_limit: {algorithm: concurrency, max_in_flight: 3, ttl: 1m, classes: {by: k, guaranteed_percent: {a: 20}}}",
		"key: k, reservations: true, rate_limits: [{name: a, unit: day, requests_per_unit: 1}, {name: b, unit: hour, requests_per_unit: 1, lease: true}]", "key: k, reservations: true, rate_limits: [{name: a, unit: day, requests_per_unit: 1}]",
	} {
		agree(t, r, d, []byte("domain: d\ndescriptors:\n  - {"+d+"}\n"))
	}
	for _, f := range []string{
		"domain: d", "domain:", "domain: ''", "domain: 7", "domain: 7.5", "domain: d\nadmission: all_or_nothing", "domain: d\nadmission: none", "domain: d\nadmission:", "domain: d\nheaders: []",
		"domain: d\nheaders: [ietf]", "domain: d\nheaders: [null]", "domain: d\nheaders: {}", "domain: d\nheaders: [{}]", "domain: d\nheaders: [ietf, ietf]", "domain: d\nheaders: ietf", "domain: d\nheaders: [x]", "domain: d\nheaders:", "domain: d\nextra: 1", "[]", "domain: d\n---\ndomain: e",
		"domain: d\n---\ndomain: 7.5", "a: &x {name: y}\ndomain: d",
	} {
		agree(t, r, f, []byte(f+"\n"))
	}
	for _, h := range []string{
		"name: X-Limit, value: '{limit}'", "name: x, value: '{used}/{capacity} {name}'", "name: x_1.y, value: a", "name: 7, value: 7", "name: x, value: true", "name: x, value: 1.5", "name: x, value: {limit}",
		"name: x", "value: a", "name:, value: a", "name: x, value:", "name: '', value: a", "name: x, value: ''", "name: x, value: '{'", "name: x, value: '}'", "name: x, value: '{limits}'", "name: x, value: '{}'",
		"name: x, value: ' a'", "name: x, value: 'a '", "name: x, value: 'a b'", "name: x, value: \"a\\nb\"", "name: x, value: \"a\\tb\"", "name: x, value: ü", "name: ':path', value: a", "name: 'a b', value: a", "name: x:, value: a",
		"name: -x, value: a", "name: Connection, value: close", "name: content-length, value: 0", "name: grpc-status, value: 0", "name: x, value: a, when: passed", "name: x, value: a, when: never", "name: x, value: a, when:",
		"name: x, value: '{retry_after}', when: passed", "name: x, value: '{retry_after}', when: denied", "name: x, value: a, of: n", "name: x, value: a, of: 7", "name: x, value: a, of: [n]", "name: x, value: a, of: []", "name: x, value: a, of: [n, n]", "name: x, value: a, of: ''", "name: x, value: a, of: ['']", "name: x, value: a, of:", "name: x, value: a, off: n",
		"name: x, value: " + strings.Repeat("v", 256), "name: x, value: " + strings.Repeat("v", 257), "value: x, name: " + strings.Repeat("n", 128), "value: x, name: " + strings.Repeat("n", 129),
		"name: X-RateLimit-Degraded, value: a", "name: x, value: a, of: [" + strings.Repeat("n, ", 33) + "]",
	} {
		agree(t, r, h, []byte("domain: d\nheaders: [{"+h+"}]\n"))
	}
	for _, b := range []string{
		"", "{}", "true", "[plan]", "{order: [plan, user]}", "{order: [plan, 7]}", "{order: plan}", "{order: []}", "{order:}", "{order: [plan, plan]}", "{order: ['']}", "{order: ['*']}", "{order: [1.5]}", "{ordr: [plan]}",
		"{default: allow}", "{default: deny, order: [plan]}", "{default: Deny}", "{default: true}", "{default:}", "{order: [" + strings.Repeat("k, ", 32) + "]}",
		"{order: [k" + strings.Join(strings.Split("0123456789abcdefghijklmnopqrstuv", ""), ", k") + "]}", "{order: [k" + strings.Join(strings.Split("0123456789abcdefghijklmnopqrstuvw", ""), ", k") + "]}",
	} {
		agree(t, r, b, []byte("domain: d\nquota_buckets: "+b+"\n"))
	}
}

// TestWritten holds the committed schemas to the code.
func TestWritten(t *testing.T) {
	for name, s := range map[string]*jsonschema.Schema{"rules": Rules(), "tests": Tests(), "overrides": Overrides()} {
		want, err := Write(s)
		if err != nil {
			t.Fatal(err)
		}
		file := top + "docs/schema/" + name + ".schema.json"
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is not what the code gives: go test ./internal/authoring/ruleschema -update", file)
		}
	}
}

// TestEditorLine wants the line that tells editors of the schema at the top of every rule and test file that we show,
// and the path in it to lead there.
func TestEditorLine(t *testing.T) {
	for _, tests := range []bool{false, true} {
		schema := "rules"
		if tests {
			schema = "tests"
		}
		files := yamlFiles(t, top+"config", tests)
		if !tests {
			files = append(files, top+"examples/istio/rules.yaml")
			for _, dir := range []string{"examples/envoy/rules", "examples/simulate/rules", "examples/simulate/stricter", "deploy/compose/rules", "deploy/kubernetes/rules"} {
				files = append(files, yamlFiles(t, top+dir, tests)...)
			}
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(strings.Split(string(text), "\n"), func(l string) bool { return strings.HasPrefix(l, "# yaml-language-server: $schema=") })
			if i < 0 {
				t.Errorf("%s: no line for editors", name)
				continue
			}
			_, path, _ := strings.Cut(strings.Split(string(text), "\n")[i], "=")
			leads, want := filepath.Join(filepath.Dir(name), path), filepath.Clean(top+"docs/schema/"+schema+".schema.json")
			if leads != want {
				t.Errorf("%s: the line leads to %s, not to %s", name, leads, want)
			}
		}
	}
}

// TestReference holds the tables of docs/ to the code.
func TestReference(t *testing.T) {
	for _, r := range []struct{ file, about, want string }{
		{"reference/rule-keys.md", "the keys of rule files", RulesReference()},
		{"reference/test-keys.md", "the keys of test files", TestsReference()},
		{"do/overrides.md", "the keys of files of overrides", OverridesReference()},
		{"reference/log-keys.md", "the keys of log mappings", MappingsReference()},
	} {
		file := top + "docs/" + r.file
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, ok := strings.Cut(string(b), "<!-- generated: "+r.about+" -->\n")
		_, after, closed := strings.Cut(rest, "<!-- end -->")
		if !ok || !closed {
			t.Fatalf("%s has no place for %s", file, r.about)
		}
		want := before + "<!-- generated: " + r.about + " -->\n" + r.want + "<!-- end -->" + after
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if want != string(b) {
			t.Errorf("%s is not what the code gives: go test ./internal/authoring/ruleschema -update", file)
		}
	}
}

// Every key of every language has a meaning, and every map that a key refers to is described.
func TestLanguagesAreComplete(t *testing.T) {
	for _, l := range []yamlform.Language{config.Rules(), ruletest.Language(), accesslog.Language(), override.Language()} {
		for _, m := range l.Maps {
			for _, k := range m.Keys {
				if k.Doc == "" {
					t.Errorf("`%s` of %s has no meaning", k.Name, m.What)
				}
				if of := k.Type.Of; of != "" && !slices.ContainsFunc(l.Maps, func(m *yamlform.Map) bool { return m.Name == of }) {
					t.Errorf("`%s` of %s has maps %q, which are not described", k.Name, m.What, of)
				}
			}
		}
	}
}

// TestTestsRejectMistakes shows the schema of test files mistakes of every kind.
func TestTestsRejectMistakes(t *testing.T) {
	r := resolve(t, Tests())
	const step = "cases: [{name: n, descriptors: a=b, steps: [{%s}]}]"
	for text, good := range map[string]bool{
		fmt.Sprintf(step, "expect: OK"):                                             true,
		fmt.Sprintf(step, "at: 1d12h, repeat: 5, expect: over_limit"):               true,
		fmt.Sprintf(step, "at: 2026-03-01T00:00:00Z, expect: {wait: never}"):        true,
		fmt.Sprintf(step, "expect: {descriptors: [OK, null, {remaining: 3}]}"):      true,
		fmt.Sprintf(step, "limit: {unit: day, requests_per_unit: 3}, expect: OK"):   true,
		"cases: [{name: n, steps: []}]\nrules: [a.yaml, b.yaml]\nstart: 2026-03-01": true,
		fmt.Sprintf(step, "expect: FINE"):                                           false,
		fmt.Sprintf(step, "at: 1x, expect: OK"):                                     false,
		fmt.Sprintf(step, "repeat: 0, expect: OK"):                                  false,
		fmt.Sprintf(step, "repeats: 5, expect: OK"):                                 false,
		fmt.Sprintf(step, "at: 1s"):                                                 false,
		fmt.Sprintf(step, "expect: {remaining: -1}"):                                false,
		fmt.Sprintf(step, "expect: {remains: 1}"):                                   false,
		fmt.Sprintf(step, "limit: {requests_per_unit: 3}, expect: OK"):              false,
		"cases: [{descriptors: a=b, steps: [{expect: OK}]}]":                        false,
		"rules: a.yaml": false,
		"cases: [{name: n, steps: [{expect: OK}]}]\nsettings: {admission: both}": false,
	} {
		if err := validate(r, []byte(text)); (err == nil) != good {
			t.Errorf("%s: %v, want good %t", text, err, good)
		}
	}
}

// TestOverridesAgrees shows the schema of files of overrides, and their reader, overrides of every kind: both take the
// same.
func TestOverridesAgrees(t *testing.T) {
	r := resolve(t, Overrides())
	const of = "domain: d, rule: d.k, entries: k=v, "
	for _, o := range []string{
		of + "requests_per_unit: 5", of + "requests_per_unit: 0", of + "requests_per_unit: 5, burst: 3", of + "requests_per_unit: 5, burst:", of + "factor: 1.5", of + "factor: 2", of + "factor: 1000",
		of + "unlimited: true", of + "blocked: yes", of + "blocked: true, unlimited: false", of + "blocked: true, factor:", of + "blocked: true, expires_at: '2026-03-01T00:00:00Z'", of + "blocked: true, limit: 5, reason: 7, author: true, version: 3",
		"domain: 7, rule: d.k, entries: [k: v, k: w], blocked: true",
		of, of + "requests_per_unit: 5, factor: 2", of + "blocked: true, unlimited: true", of + "blocked: false", of + "factor: 0", of + "factor: 1000.5", of + "factor: -2", of + "factor: half", of + "factor: 2, burst: 3",
		of + "requests_per_unit: 5, burst: 0", of + "requests_per_unit: -1", of + "requests_per_unit: 1.5", of + "requests_per_unit: many", of + "blocked: true, expires_at: '2026-03-01'", of + "blocked: true, expires_at: soon",
		of + "blocked: true, version: -1", of + "blocked: maybe", of + "request_per_unit: 5", "rule: d.k, entries: k=v, blocked: true", "domain: d, entries: k=v, blocked: true", "domain: d, rule: d.k, blocked: true", "domain: d, rule: '', entries: k=v, blocked: true",
	} {
		agreeOnOverrides(t, r, "overrides: [{"+o+"}]")
	}
	for _, f := range []string{"overrides: []", "overrides:", "override: []", "{}", "[]", "overrides: {}", "overrides: [x]", "overrides: []\nextra: 1"} {
		agreeOnOverrides(t, r, f)
	}
}

func agreeOnOverrides(t *testing.T, r *jsonschema.Resolved, text string) {
	t.Helper()
	denied := validate(r, []byte(text))
	if _, wrong := override.ReadFile("o.yaml", []byte(text)); (denied != nil) != (len(wrong) > 0) {
		t.Errorf("%s: the reader says %v, the schema %v", text, wrong, denied)
	}
}
