package config

import "testing"

// While a version is replaced, processes of both report their checksums. So what older versions could read keeps its checksum.
func TestChecksumOfOlderRules(t *testing.T) {
	for _, c := range []struct {
		text string
		want uint64
	}{
		{"{key: a, rate_limit: {unit: day, requests_per_unit: 7}}", 4588087685877554},
		{"{key: a, overridable: true, rate_limit: {unit: day, requests_per_unit: 7}}", 2286798866956469},
		{"{key: a, overridable: {max: 100}, usage: true, rate_limit: {unit: day, requests_per_unit: 7}}", 8714421159160641},
		{"{key: a, value: x*, share_threshold: true, reservations: true, rate_limit: {unit: week, requests_per_unit: 7, calendar: UTC}}", 3843706468772451},
		{"{key: a, values: [x, y], metadata: {b: c}, rate_limits: [{name: n, unit: day, requests_per_unit: 7, algorithm: token_bucket, burst: 9}]}", 8196892248149483},
	} {
		_, tree, errs := rulesOf(t, "domain: d\ndescriptors:\n- "+c.text)
		if errs != nil || tree.Checksum != c.want {
			t.Errorf("%s\nhas the checksum %d, want %d; errors %q", c.text, tree.Checksum, c.want, errs)
		}
	}
}

// Overrides that have a bound are not those that have none.
func TestChecksumOfOverrides(t *testing.T) {
	seen := make(map[uint64]string)
	for _, key := range []string{"", "overridable: true", "overridable: {max: 4294967294}", "overridable: {max: 4294967295}", "overridable: {max: 4294967296}", "overridable: {max: 9007199254740990}"} {
		_, tree, errs := rulesOf(t, "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 7}, "+key+"}")
		if before, twice := seen[tree.Checksum]; twice || errs != nil {
			t.Errorf("%q has the checksum of %q; errors %q", key, before, errs)
		}
		seen[tree.Checksum] = key
	}
}
