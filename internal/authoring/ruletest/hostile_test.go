package ruletest

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform/yamlformtest"
)

// Reading a hostile test file costs work in proportion to its size, and gives a bounded number of errors.
func TestHostileFiles(t *testing.T) {
	tests := yamlformtest.Language{Top: "rules: r.yaml\n", List: "cases", Item: "steps: [{descriptors: k=v, expect: OK}]", Key: "name"}
	tests.Test(t, func(data []byte) int {
		_, errs := parse("t.yaml", data)
		return len(errs)
	})
}
