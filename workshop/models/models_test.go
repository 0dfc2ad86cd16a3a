package models_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type constants map[string]string

// setting is a model with constants that replace those in its .cfg.
type setting struct {
	name      string // name of the row in docs/contributing/proof.md
	model     string
	constants constants
}

// settings are those under which the invariants hold.
var settings = []setting{
	{name: "lease", model: "lease"},
	{name: "lease, with a store that forgets", model: "lease", constants: constants{"Forgets": "TRUE", "MaxAsks": "2"}},
	{name: "claims, after a process was killed", model: "claims", constants: constants{"MaxAsks": "2"}},
	{name: "claims, after a process has ended", model: "claims", constants: constants{"Faults": `{"end"}`, "MaxAsks": "2"}},
	{name: "claims, when shares expire", model: "claims", constants: constants{"Faults": "{}", "MaxAsks": "2", "End": "2"}},
}

// larger are settings that take minutes.
var larger = []setting{
	{name: "lease, with a store that forgets", model: "lease", constants: constants{"Forgets": "TRUE"}},
	{name: "claims, after a process was killed", model: "claims"},
	{name: "claims, after a process was killed, two seconds later", model: "claims", constants: constants{"End": "2"}},
	{name: "claims, after a process has ended", model: "claims", constants: constants{"Faults": `{"end"}`, "End": "2"}},
	{name: "claims, when shares expire", model: "claims", constants: constants{"Faults": "{}", "End": "2"}},
}

// guards are the parts of each model that can be removed. Each setting is a small one in which the invariant Bounded
// fails without the guard.
var guards = map[string]map[string]setting{
	"lease": {
		"charged": {},
		"sent":    {constants: constants{"Processes": "{p}"}},
		"failed":  {},
		"end":     {constants: constants{"Processes": "{p}"}},
		"dormant": {constants: constants{"Processes": "{p}"}},
		"aside":   {constants: constants{"Processes": "{p}"}},
		"refund":  {constants: constants{"Processes": "{p}"}},
	},
	"claims": {
		"number":     {constants: constants{"Faults": "{}", "Rate": "1"}},
		"answered":   {constants: constants{"Rate": "1"}},
		"more":       {},
		"rest":       {},
		"since":      {constants: constants{"Faults": `{"kill", "stranger"}`, "End": "2", "Rate": "1"}},
		"held":       {constants: constants{"Faults": "{}"}},
		"expired":    {constants: constants{"Faults": "{}", "End": "2", "MaxAsks": "2"}},
		"unanswered": {constants: constants{"Faults": "{}"}},
		"waits":      {constants: constants{"Faults": "{}"}},
		"until":      {constants: constants{"Faults": "{}", "End": "2"}},
	},
}

// configuration returns the .cfg of a model under a setting, without some guards.
func (s setting) configuration(t *testing.T, without ...string) string {
	t.Helper()
	text, err := os.ReadFile(s.model + ".cfg")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	set := func(begins, line string) {
		i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, begins) })
		if i < 0 {
			t.Fatalf("%s.cfg has no line that begins with %q", s.model, begins)
		}
		lines[i] = line
	}
	for _, name := range slices.Sorted(maps.Keys(s.constants)) {
		set("  "+name+" = ", "  "+name+" = "+s.constants[name])
	}
	if s.constants["Processes"] != "" {
		set("SYMMETRY ", "") // TLC fails at a symmetry of one
	}
	for _, guard := range without {
		set("  Off = ", fmt.Sprintf("  Off = {%q}", guard))
		set("INVARIANTS ", "INVARIANTS Bounded")
	}
	return strings.Join(lines, "\n")
}

// check runs TLC on a model and returns its output.
func check(t *testing.T, model, configuration string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("NOT RUN with -short: it needs TLC")
	}
	tlc, err := exec.LookPath("tlc")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("find TLC: %v. workshop/scripts/install-tlc gets it", err)
		}
		t.Skip("NOT RUN without tlc: workshop/scripts/install-tlc gets it")
	}
	dir := t.TempDir() // TLC writes its states here
	text, err := os.ReadFile(model + ".tla")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{model + ".tla": string(text), model + ".cfg": configuration} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.CommandContext(t.Context(), tlc, "-deadlock", "-workers", "1", "-config", model+".cfg", model)
	c.Dir = dir
	c.Env = append(os.Environ(), "JAVA_TOOL_OPTIONS=-Djava.io.tmpdir="+dir)
	out, err := c.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out)
}

var explored = regexp.MustCompile(`states generated, (\d+) distinct states found, 0 states left on queue`)

// states checks a model and returns how many states it has.
func (s setting) states(t *testing.T) string {
	t.Helper()
	out := check(t, s.model, s.configuration(t))
	m := explored.FindStringSubmatch(out)
	if m == nil || !strings.Contains(out, "No error has been found") {
		t.Fatal(out)
	}
	n, _ := strconv.Atoi(m[1])
	return thousands(n)
}

// No state of a model violates an invariant. The page gives the number of states.
func TestModels(t *testing.T) {
	page, err := os.ReadFile("../../docs/contributing/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		t.Run(s.name, func(t *testing.T) {
			if row := fmt.Sprintf("| %s | %s |", s.name, s.states(t)); !strings.Contains(string(page), row) {
				t.Errorf("docs/contributing/proof.md has no row %q", row)
			}
		})
	}
}

func TestModelsSoak(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes minutes")
	}
	for _, s := range larger {
		t.Run(s.name, func(t *testing.T) { t.Logf("%s states", s.states(t)) })
	}
}

func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// A model without any one of its guards violates its invariant.
func TestGuardsSoak(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it runs TLC for each guard, and depends only on the models")
	}
	for model, all := range guards {
		for guard, s := range all {
			t.Run(model+"/"+guard, func(t *testing.T) {
				s.model = model
				out := check(t, model, s.configuration(t, guard))
				if !strings.Contains(out, "Invariant Bounded is violated") {
					t.Errorf("without the guard, Bounded is not violated:\n%s", out)
				}
			})
		}
	}
}

// Every guard that a model can be without is tested, and every guard is on the page.
func TestGuardsAreListed(t *testing.T) {
	page, err := os.ReadFile("../../docs/contributing/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	for model, tested := range guards {
		text, err := os.ReadFile(model + ".tla")
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`ASSUME Off \\subseteq \{(.+)\}`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s.tla does not say which guards there are", model)
		}
		listed := strings.Split(strings.ReplaceAll(string(m[1]), `"`, ""), ", ")
		slices.Sort(listed)
		if all := slices.Sorted(maps.Keys(tested)); !slices.Equal(all, listed) {
			t.Errorf("%s.tla has the guards %v, and %v are tested", model, listed, all)
		}
		_, section, _ := strings.Cut(string(page), "\n## "+model+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, guard := range listed {
			if !strings.Contains(section, "| `"+guard+"` |") {
				t.Errorf("docs/contributing/proof.md does not explain the guard %s of %s", guard, model)
			}
		}
	}
}
