package config_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform/yamlformtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// Reading a hostile rule file costs work in proportion to its size, and gives a bounded number of errors.
func TestHostileFiles(t *testing.T) {
	racetest.Sequential(t)
	rules := yamlformtest.Language{Top: "domain: d\n", List: "descriptors", Item: "key: k, rate_limit: {unit: day, requests_per_unit: 1}", Key: "value", Aliases: true}
	for _, lenient := range []bool{false, true} {
		rules.Test(t, func(data []byte) int {
			_, errs := config.Compile([]config.File{{Name: "a.yaml", Data: data}}, config.CompileOptions{Lenient: lenient})
			return len(errs)
		})
	}
}
