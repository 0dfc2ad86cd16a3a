package rulecheck

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform/yamlformtest"
)

// Checking a hostile rule file costs work in proportion to its size, and gives a bounded number of errors.
func TestHostileFiles(t *testing.T) {
	rules := yamlformtest.Language{Top: "domain: d\n", List: "descriptors", Item: "key: k, rate_limit: {unit: day, requests_per_unit: 1}", Key: "value"}
	rules.Test(t, func(data []byte) int {
		errs := 0
		for _, f := range Check([]config.File{{Name: "a.yaml", Data: data}}, &Options{}, noon) {
			if f.Severity == Error {
				errs++
			}
		}
		return errs
	})
}
