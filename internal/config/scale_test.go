package config

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestScale(t *testing.T) {
	_, tree, errs := rulesOf(t, `
domain: d
descriptors:
  - key: app
    descriptors:
      - key: users
        condition: true
        rate_limit: {unit: hour, requests_per_unit: 200, scale: {by: users, max: 1000}}
        descriptors:
          - key: path
            rate_limits:
              - {name: own, unit: hour, requests_per_unit: 7}
              - {name: users, unit: day, requests_per_unit: 50, scale: {by: users, max: 20}}
  - {key: app, value: big, inherit: true}
`)
	if errs != nil {
		t.Fatal(errs)
	}
	for path, want := range map[string][]*descriptor.Scale{
		"d.app.users":          {{Key: "users", Level: 1, Max: 1000}},
		"d.app.users.path":     {nil, {Key: "users", Level: 1, Max: 20}},
		"d.app_big.users":      {{Key: "users", Level: 1, Max: 1000}},
		"d.app_big.users.path": {nil, {Key: "users", Level: 1, Max: 20}},
	} {
		found := false
		for _, rule := range tree.Rules {
			if rule.Path != path {
				continue
			}
			found = true
			for i, s := range want {
				got := rule.ScaleOf(i)
				if (got == nil) != (s == nil) || got != nil && (got.Key != s.Key || got.Level != s.Level || got.Max != s.Max) {
					t.Errorf("%s, limit %d: %+v, want %+v", path, i, got, s)
				}
			}
		}
		if !found {
			t.Errorf("no rule %s", path)
		}
	}
}

func TestBadScale(t *testing.T) {
	const users = "{key: users, condition: true, rate_limit: {unit: hour, requests_per_unit: 200, "
	for _, c := range []struct {
		text string
		want []string
	}{
		{users + "scale: users}}", []string{"2:89: `scale` must be a map"}},
		{users + "scale: {max: 5}}}", []string{"2:89: `scale` without `by`: write the key of the entry with the number"}},
		{users + "scale: {by: users}}}", []string{"2:89: `scale` without `max`: write the largest number that counts"}},
		{users + "scale: {by: users, max: 0}}}", []string{"2:106: `max` must be a whole number from 1 to"}},
		{users + "scale: {by: user, max: 5}}}", []string{"2:89: `scale` by \"user\": no level of this rule has this key; it has `users`"}},
		{users + "lease: true, scale: {by: users, max: 5}}}", []string{"2:102: `scale` and `lease: true`"}},
		{users + "scale: {by: users, max: 9007199254740991}}}", []string{"2:89: `scale` with a `max` of 9007199254740991: 200 times 9007199254740991 is more than 9007199254740991"}},
		{users + "algorithm: sliding_log, scale: {by: users, max: 1000}}}", []string{"2:113: `scale` with a `max` of 1000: a sliding_log keeps every hit"}},
		{users + "algorithm: token_bucket, scale: {by: users, max: 10000000}}}", []string{"2:114: `scale` with a `max` of 10000000: a bucket of 200 with 10000000 times this rate"}},
		{users + "algorithm: token_bucket, scale: {by: users, max: 5000000}}}", []string{"2:114: `scale` with a `max` of 5000000: a bucket of 200 with 5000000 times this rate cannot be counted exactly for each number up to 5000000"}},
		{"{key: users, rate_limit: {unit: hour, requests_per_unit: 200, scale: {by: users, max: 5}}}", []string{"2:72: `scale` by \"users\": each number would have a counter of its own, so a customer with another number would start from zero; write `condition: true` in the descriptor on line 2"}},
		{"{key: users, value: many, condition: true, rate_limit: {unit: hour, requests_per_unit: 200, scale: {by: users, max: 5}}}", []string{"2:102: `scale` by \"users\": the rule matches the value \"many\", which is not a number"}},
		{"{key: users, condition: true, overridable: true, rate_limit: {unit: hour, requests_per_unit: 200, scale: {by: users, max: 5}}}", []string{"2:46: `overridable` and `scale`"}},
		{"{key: users, condition: true, rate_limit: {unlimited: true, scale: {by: users, max: 5}}}", []string{"2:70: `unlimited: true` and `scale`"}},
		{"{key: users, condition: true, rate_limit: {algorithm: concurrency, max_in_flight: 5, ttl: 1m, scale: {by: users, max: 5}}}", []string{"2:104: `scale` cannot be used with `concurrency`"}},
	} {
		t.Run(c.text, func(t *testing.T) {
			checkMistakes(t, "- "+c.text, c.want)
		})
	}
}
