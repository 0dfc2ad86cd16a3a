package config

import (
	"slices"
	"testing"
)

// TestRulesLanguage holds what is said of the language to what reads it: the same maps have the same keys.
func TestRulesLanguage(t *testing.T) {
	read := map[string][]string{
		"file":       documentShape.names(),
		"descriptor": descriptorShape.names(),
		"limit":      rateLimitShape.names(),
		"replaces":   replacesShape.names(),
	}
	language := Rules()
	if len(language.Maps) != len(read) {
		t.Errorf("%d maps are described, %d are read", len(language.Maps), len(read))
	}
	for _, m := range language.Maps {
		var said []string
		for _, k := range m.Keys {
			said = append(said, k.Name)
			if k.Doc == "" {
				t.Errorf("nothing is said of `%s` in %s", k.Name, m.What)
			}
			if of := k.Type.Of; of != "" && !slices.ContainsFunc(language.Maps, func(m Map) bool { return m.Name == of }) {
				t.Errorf("`%s` in %s has maps %q, which are not described", k.Name, m.What, of)
			}
		}
		if !slices.Equal(said, read[m.Name]) {
			t.Errorf("%s: described are %q, read are %q", m.What, said, read[m.Name])
		}
	}
}
