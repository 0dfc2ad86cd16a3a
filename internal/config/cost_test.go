package config

import (
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Costs of a hit: a number, tables by the values of entries, and inherited tables.
func TestHitCost(t *testing.T) {
	_, tree, errs := rulesOf(t, `
domain: d
descriptors:
  - key: one
    cost: 5
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: user
    descriptors:
      - key: model
        condition: true
        fold_case: true
        cost: {model: {Large: 10, small: 2, "*": 3}}
        rate_limit: {unit: day, requests_per_unit: 100}
        descriptors:
          - key: kind
            values: [input, output]
            condition: true
            reservations: true
            cost: {kind: {input: 1, output: 4}, model: {large: 10, "*": 1}, a: 0.5}
            rate_limit: {unit: day, requests_per_unit: 100}
  - {key: user, value: acme, inherit: true}
  - {key: job, cost: 6, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: job, value: own, inherit: true, rate_limit: {unit: day, requests_per_unit: 500}}
  - {key: job, value: cheap, inherit: true, cost: 1, rate_limit: {unit: day, requests_per_unit: 500}}
  - {key: job, value: free, inherit: true, rate_limit: {unlimited: true}}
`)
	if errs != nil {
		t.Fatal(errs)
	}
	d := tree.Domain("d")
	for path, want := range map[string]uint64{
		"one=a":                            5,
		"job=a":                            6,
		"job=own":                          6,
		"job=cheap":                        1,
		"job=free":                         1,
		"user=a,model=large":               10,
		"user=a,model=LARGE":               10,
		"user=a,model=small":               2,
		"user=a,model=":                    3,
		"user=a,model=other":               3,
		"user=acme,model=large":            10,
		"user=a,model=Large,kind=output":   40,
		"user=a,model=x,kind=output":       4,
		"user=acme,model=large,kind=input": 10,
	} {
		var entries []descriptor.Entry
		for pair := range strings.SplitSeq(path, ",") {
			key, value, _ := strings.Cut(pair, "=")
			entries = append(entries, descriptor.Entry{Key: key, Value: value})
		}
		if rule := d.Match(entries); rule == nil || rule.HitCostOf(entries) != want {
			t.Errorf("%s counts for %v, want %d", path, rule, want)
		}
	}
	if got := d.Match([]descriptor.Entry{{Key: "user"}, {Key: "model"}, {Key: "kind", Value: "input"}}).Cost(); len(got) != 1 {
		t.Errorf("weights of amounts next to tables: %+v", got)
	}
}

func TestBadHitCost(t *testing.T) {
	const limit = ", rate_limit: {unit: day, requests_per_unit: 9}}"
	for _, c := range []struct {
		text string
		want []string
	}{
		{"{key: k, cost: 0" + limit, []string{"2:18: `cost` must be a whole number from 1 to 1000000, or a map such as `{model: {large: 10, \"*\": 1}}`, not the number 0; for requests that cost nothing write a descriptor with `rate_limit: {unlimited: true}`"}},
		{"{key: k, cost: 1.5" + limit, []string{"2:18: `cost` must be a whole number from 1 to 1000000"}},
		{"{key: k, cost: 1000001" + limit, []string{"2:18: `cost` must be a whole number"}},
		{"{key: k, cost: double" + limit, []string{"2:18: `cost` must be a whole number"}},
		{"{key: k, cost: {k: {}}" + limit, []string{"2:22: `cost` by \"k\" is empty"}},
		{"{key: k, cost: {k: {a: 0, b: 1.5, '*': 1}}" + limit, []string{"2:26: \"a\" in `cost` must be a whole number from 1 to 1000000, not the number 0", "2:32: \"b\" in `cost`"}},
		{"{key: k, cost: {k: {a: 1, a: 2, '*': 1}}" + limit, []string{"2:29: \"a\" twice in `cost`"}},
		{"{key: k, cost: {k: {a: 1}}" + limit, []string{"2:22: `cost` by \"k\" does not say what a hit counts for if the value is none of these, and the rule matches others: write it, such as `\"*\": 1`"}},
		{"{key: k, value: x, cost: {k: {a: 1}}" + limit, []string{"2:32: `cost` by \"k\" does not say what a hit counts for if the value is none of these, and the rule matches \"x\""}},
		{"{key: k, values: [a, x], cost: {k: {a: 1}}" + limit, []string{"2:38: `cost` by \"k\" does not say what a hit counts for if the value is none of these, and the rule matches \"x\""}},
		{"{key: k, cost: {model: {'*': 1}}" + limit, []string{"2:26: `cost` by \"model\": no level of this rule has this key; it has `k`"}},
		{"{key: k, descriptors: [{key: k, cost: {k: {'*': 1}}" + limit + "]}", []string{"2:45: `cost` by \"k\": two levels of this rule have this key"}},
		{"{key: k, fold_case: true, cost: {k: {a: 1, A: 2, '*': 1}}" + limit, []string{"2:39: `cost` by \"k\": "}},
		{"{key: k, cost: {a: 1, k: {'*': 1}}" + limit, []string{"2:18: `cost` of \"a\" needs `reservations`"}},
		{"{key: k, cost: 2, rate_limit: {unlimited: true}}", []string{"2:18: `cost` and `unlimited: true`"}},
		{"{key: k, cost: 2, rate_limit: {algorithm: concurrency, max_in_flight: 3, ttl: 1m}}", []string{"2:18: `cost` and `algorithm: concurrency`"}},
	} {
		t.Run(c.text, func(t *testing.T) {
			checkMistakes(t, "- "+c.text, c.want)
		})
	}
}
