package rapidtest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestDraws is run by TestSeed in a separate process.
func TestDraws(t *testing.T) {
	var drawn []uint64
	rapid.Check(t, func(t *rapid.T) { drawn = append(drawn, rapid.Uint64().Draw(t, "")) })
	t.Logf("drawn: %x", drawn)
}

func TestSeed(t *testing.T) {
	draws := func(env ...string) string {
		c := exec.Command(os.Args[0], "-test.run=^TestDraws$", "-test.v", "-rapid.checks=5")
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, "CI=") && !strings.HasPrefix(v, "NEW_VALUES=") {
				c.Env = append(c.Env, v)
			}
		}
		c.Env = append(c.Env, env...)
		out, err := c.CombinedOutput()
		_, list, found := strings.Cut(string(out), "drawn: ")
		if err != nil || !found {
			t.Fatalf("%v\n%s", err, out)
		}
		list, _, _ = strings.Cut(list, "\n")
		return list
	}
	if a, b := draws("CI=true"), draws("CI=true"); a != b {
		t.Errorf("in .ci/run, two runs draw %s and %s", a, b)
	}
	for _, env := range [][]string{nil, {"CI=true", "NEW_VALUES=1"}} {
		if a, b := draws(env...), draws(env...); a == b {
			t.Errorf("with %q, two runs draw %s", env, a)
		}
	}
}
