package differential_test

import (
	"encoding/json"
	"testing"

	"github.com/ratelimitd/ratelimitd/e2e/differential"
	"github.com/ratelimitd/ratelimitd/internal/config"
)

// The rules that are drawn have every key of the rule language.
func TestEveryRuleKeyIsDrawn(t *testing.T) {
	drawn := make(map[string]bool)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			for key, value := range v {
				drawn[key] = true
				walk(value)
			}
		}
	}
	for seed := range uint64(60) {
		for _, version := range differential.Draw(seed, 0).Versions {
			for _, file := range version.Files {
				var rules any
				if err := json.Unmarshal([]byte(file), &rules); err != nil {
					t.Fatal(err)
				}
				walk(rules)
			}
		}
	}
	for _, m := range config.Rules().Maps {
		for _, key := range m.Keys {
			if !drawn[key.Name] {
				t.Errorf("no rule has the key %s of %s: draw it in draw_rules.go, so that a change of its meaning is found", key.Name, m.What)
			}
		}
	}
}
