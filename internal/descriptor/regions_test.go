package descriptor

import (
	"strings"
	"testing"
)

func TestValidRegion(t *testing.T) {
	for name, want := range map[string]bool{
		"eu": true, "us-west-2": true, "7": true, strings.Repeat("a", MaxRegionName): true,
		"": false, "EU": false, "-eu": false, "eu-": false, "eu/us": false, "e u": false, "eü": false, "eu.": false, strings.Repeat("a", MaxRegionName+1): false,
	} {
		if ValidRegion(name) != want {
			t.Errorf("%q is a valid name: %t", name, !want)
		}
	}
}
