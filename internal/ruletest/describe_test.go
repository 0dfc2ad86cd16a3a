package ruletest

import (
	"slices"
	"testing"
)

// TestDescribedLanguage holds what is said of the language to what reads it: the same maps have the same keys.
func TestDescribedLanguage(t *testing.T) {
	read := map[string][]string{
		"file":       fileShape.names(),
		"settings":   settingsShape.names(),
		"case":       caseShape.names(),
		"step":       stepShape.names(),
		"descriptor": descriptorShape.names(),
		"override":   overrideShape.names(),
		"expect":     expectShape.names(),
		"verdict":    verdictShape.names(),
	}
	language := Language()
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
		}
		if !slices.Equal(said, read[m.Name]) {
			t.Errorf("%s: described are %q, read are %q", m.What, said, read[m.Name])
		}
	}
}
