package rapidtest

import (
	"flag"
	"os"

	_ "pgregory.net/rapid" // declares the flag
)

// A run with the same values finds with 100 draws little that it does not find with 30. The nightly run draws 100
// others.
const (
	seed  = "20260901" // rapid reads 0 as "another one each time"
	draws = "30"       // -short draws a fifth; with fewer, some tests would draw nothing that they look for
)

// Nightly is true in the nightly run and in make soak, which try random or exhaustive cases at full length.
var Nightly = os.Getenv("NEW_VALUES") != "" || os.Getenv("RATELIMITD_SOAK") != ""

// Cases returns how many cases a test tries that could try many: all of them in the nightly run, otherwise a few.
func Cases(few, all int) int {
	if Nightly {
		return all
	}
	return few
}

func init() {
	if os.Getenv("CI") == "" || os.Getenv("NEW_VALUES") != "" {
		return
	}
	for name, value := range map[string]string{"rapid.seed": seed, "rapid.checks": draws} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}
