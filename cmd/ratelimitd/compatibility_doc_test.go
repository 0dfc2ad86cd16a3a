package main

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

var codeSpan = regexp.MustCompile("`([^`]+)`")

// tableOf reads the rows of the tables below a heading of level 2 or 3 of a page, up to the next heading of the same
// level or above. Without a heading it reads the whole page.
func tableOf(t *testing.T, name, heading string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", name))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	if heading != "" {
		level := "\n## "
		_, after, found := strings.Cut(page, level+heading+"\n")
		if !found {
			level = "\n### "
			_, after, found = strings.Cut(page, level+heading+"\n")
		}
		if !found {
			t.Fatalf("%s has no heading %q", name, heading)
		}
		page, _, _ = strings.Cut(after, level)
		page, _, _ = strings.Cut(page, "\n## ")
	}
	var rows [][]string
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		var cells []string
		for _, c := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(c))
		}
		rows = append(rows, cells)
	}
	return rows
}

// TestEnvironmentIsDocumented compares the variables in docs/reference/compatibility.md with the list of
// envoyproxy/ratelimit's variables: one without a row must have the default of envoyproxy/ratelimit and must have an
// effect. Variables without effect have a separate table.
func TestEnvironmentIsDocumented(t *testing.T) {
	racetest.Sequential(t)
	model, _ := modelOf(t)
	flags := flagsByVariable(model)
	theirs := referenceEnvironment(t)
	silent := make(map[string]bool)
	for _, v := range silentVariables() {
		silent[v.name] = true
	}
	differs := make(map[string]string) // the heading of the table
	for _, heading := range []string{"Different: look at these", "Without effect", "Better"} {
		for _, row := range tableOf(t, "compatibility.md", heading) {
			for _, m := range codeSpan.FindAllStringSubmatch(row[0], -1) {
				name := m[1]
				if theirs[name] == nil || differs[name] != "" {
					t.Errorf("%s is no variable of envoyproxy/ratelimit, or has two rows", name)
				}
				differs[name] = heading
				if len(row) != 2 || row[1] == "" {
					t.Errorf("%s: %q does not say how it differs", name, row)
				}
				if silent[name] != (heading == "Without effect") {
					t.Errorf("%s is below the heading %q; it has no effect: %t", name, heading, silent[name])
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		ours := flags[name]
		switch {
		case differs[name] != "" || strings.HasPrefix(name, "DOG_STATSD_MOGRIFIER_"):
			// the latter are read by name, and have no default
		case ours == nil || silent[name]:
			t.Errorf("%s has no effect, and docs/reference/compatibility.md has no row for it", name)
		case !sameDefault(ours, theirs[name].value):
			t.Errorf("%s is %q by default, in envoyproxy/ratelimit %q, and docs/reference/compatibility.md has no row for it", name, ours.Default, theirs[name].value)
		}
	}
	if len(differs) < 40 {
		t.Errorf("only %d variables differ", len(differs))
	}
}

// shownDefault formats a flag's default as the page shows it.
func shownDefault(f *kong.Flag) string {
	if f == nil {
		return ""
	}
	if f.Default == "" && f.Target.Kind() == reflect.Bool {
		return "false"
	}
	return f.Default
}

// TestCompatibilityIsDocumented compares docs/reference/compatibility.md with the rule language, the service's
// endpoints and the existing tests. TestMetricsAreDocumented holds the names of envoyproxy/ratelimit's metrics.
func TestCompatibilityIsDocumented(t *testing.T) {
	racetest.Sequential(t)
	const page = "compatibility.md"
	named := func(heading string, column int) map[string]string {
		all := make(map[string]string)
		for _, row := range tableOf(t, page, heading) {
			for _, m := range codeSpan.FindAllStringSubmatch(row[column], -1) {
				all[m[1]] = row[len(row)-1]
			}
		}
		return all
	}

	keys := named("Rule keys", 0)
	theirKeys := make(map[string]bool)
	for _, m := range config.Rules().Maps {
		for _, k := range m.Keys {
			theirKeys[k.Name] = theirKeys[k.Name] || !k.Extension
		}
	}
	for name, said := range keys {
		if !theirKeys[name] || said == "" {
			t.Errorf("the key %s is no key of envoyproxy/ratelimit, or %q does not say how it differs", name, said)
		}
	}
	if len(keys) < 5 {
		t.Errorf("only %d keys differ", len(keys))
	}

	endpoints := named("Endpoints", 0)
	i := begin(t, nil, "--rules", rulesOf(t, fiveADay))
	if i.err != nil {
		t.Fatal(i.failed())
	}
	served := i.svc.Server.Services()
	_, index := get(t, i.debug()+"/")
	served = append(served, regexp.MustCompile(`(?m)^/\S+|ratelimitd\.admin\.v1\.\w+`).FindAllString(index, -1)...)
	served = append(served, "/json", "/healthcheck", "/livez", "/readyz", "/metrics")
	if len(served) < 12 {
		t.Errorf("only %d endpoints: %q", len(served), served)
	}
	for _, name := range served {
		documented := false
		for row, said := range endpoints {
			documented = documented || (row == name || strings.HasPrefix(row, name+"/") || name == "grpc.reflection.v1alpha.ServerReflection") && said != ""
		}
		if !documented {
			t.Errorf("the endpoint %s has no row", name)
		}
	}
	for row := range endpoints {
		if strings.HasPrefix(row, "/") && !slices.Contains(served, row) {
			t.Errorf("there is no endpoint %s", row)
		}
	}

	tests := testNames(t)
	defects := tableOf(t, "../contributing/defects.md", "Known defects")[1:]
	if len(defects) != 23 {
		t.Errorf("%d defects, want 23", len(defects))
	}
	for i, row := range defects {
		shown := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(row[3], -1)
		if row[0] != strconv.Itoa(i+1) || len(shown) == 0 {
			t.Errorf("row %d is %q", i+1, row)
		}
		for _, m := range shown {
			if !tests[m[1]] {
				t.Errorf("defect %d: there is no test %s", i+1, m[1])
			}
		}
	}
}
