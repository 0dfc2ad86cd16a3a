package rapidtest

import (
	"flag"
	"os"
	"strconv"

	_ "pgregory.net/rapid" // declares the flag
)

// seed is that of all runs with CI set: rapid reads 0 as "another one each time".
const seed = "20260901"

// Usual and nightly are the values that a property is tried with. A change is found by few of them; what it did not make is found at night.
const usual, nightly = 15, 100

// Nightly says whether this is the nightly run, or make soak: it tries what is random or exhaustive at full length.
var Nightly = os.Getenv("NEW_VALUES") != "" || os.Getenv("RATELIMITD_SOAK") != ""

// Cases returns how many cases a test tries that could try many: all of them in the nightly run, else a few.
func Cases(few, all int) int {
	if Nightly {
		return all
	}
	return few
}

func init() {
	set("rapid.checks", strconv.Itoa(Cases(usual, nightly)))
	if os.Getenv("CI") != "" && !Nightly {
		set("rapid.seed", seed)
	}
}

func set(name, value string) {
	if err := flag.Set(name, value); err != nil {
		panic(err)
	}
}
