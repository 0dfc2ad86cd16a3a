package config

import "testing"

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
