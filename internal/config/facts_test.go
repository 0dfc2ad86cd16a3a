package config

import (
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// Every key has a row here, which reads it, and a fact in package descriptor, which shows it. These keys have no fact.
func TestEveryKeyHasAFact(t *testing.T) {
	racetest.Sequential(t)
	for _, c := range []struct {
		rows    []*yamlform.Map
		facts   []string
		without []string
	}{
		{[]*yamlform.Map{&fileForm.Map}, keysOf(descriptor.DomainFacts), []string{
			"domain", "descriptors", // the subject of the other facts
		}},
		{[]*yamlform.Map{&descriptorForm.Map, &limitForm.Map}, append(keysOf(descriptor.RuleFacts), keysOf(descriptor.LimitFacts)...), []string{
			"rate_limit", "rate_limits", "descriptors", "inherit", // the subject of the other facts
			"key", "value", "values", "value_regex", "value_cidr", // the path of the rule
			"unit", "requests_per_unit", // /rlconfig shows them first, as envoyproxy/ratelimit does
			"value_to_metric", "share_threshold", "condition", // settings of a level
		}},
	} {
		read := make(map[string]bool)
		for _, m := range c.rows {
			for _, key := range m.Keys {
				read[key.Name] = true
			}
		}
		shown := make(map[string]bool)
		for _, key := range slices.Concat(c.facts, c.without) {
			if shown[key] {
				t.Errorf("two facts of the key %s, or a fact where none is needed", key)
			}
			shown[key] = true
		}
		for key := range read {
			if !shown[key] {
				t.Errorf("the key %s has no fact: add a row to internal/descriptor/facts.go", key)
			}
			delete(shown, key)
		}
		for key := range shown {
			t.Errorf("a fact of %s, which is no key", key)
		}
	}
}

func keysOf[T any](facts descriptor.Facts[T]) (keys []string) {
	for _, f := range facts {
		keys = append(keys, f.Key)
	}
	return keys
}
