package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// settingsPage is the page whose tables list all settings of serve.
var settingsPage = filepath.Join("..", "..", "docs", "reference", "environment.md")

// The tables of settings in docs/reference/environment.md are what the flags say, and a flag's name follows from its
// variable as the page says. With -update the test writes the tables.
func TestSettingsPage(t *testing.T) {
	racetest.Sequential(t)
	page, err := os.ReadFile(settingsPage)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- settings: written by go test ./cmd/ratelimitd -run TestSettingsPage -update -->\n", "<!-- end of settings -->\n"
	head, rest, found := strings.Cut(string(page), begin)
	_, tail, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatalf("%s has no place for the settings", settingsPage)
	}
	model, _ := modelOf(t)
	want := head + begin + settingsTables(t, model) + end + tail
	if want == string(page) {
		return
	}
	if !*update {
		t.Fatalf("%s differs from the settings: run go test ./cmd/ratelimitd -run TestSettingsPage -update, and read it", settingsPage)
	}
	if err := os.WriteFile(settingsPage, []byte(want), 0o644); err != nil { //nolint:gosec // a page of the repository
		t.Fatal(err)
	}
}

// settingsTables are the settings of serve, a table for each group.
func settingsTables(t *testing.T, model *kong.Application) string {
	var b strings.Builder
	group, settings := "", 0
	var perSecond []string                    // settings of the second Redis that mean the same as the first one's
	plainFlags := make(map[string]*kong.Flag) // by variable
	var rows []string                         // of the group
	var silent []string                       // without effect
	ofSecond := func() {
		b.WriteString(strings.Join(rows, ""))
		rows = nil
		if perSecond != nil {
			fmt.Fprintf(&b, "\n%s describe the second Redis, as the settings without `PERSECOND_` describe the first.\n", strings.Join(perSecond, ", "))
		}
		perSecond = nil
	}
	for _, f := range model.DefaultCmd.Flags {
		if f.Hidden || len(f.Envs) == 0 {
			continue
		}
		settings++
		name := f.Envs[0]
		flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "RATELIMITD_"), "_", "-"))
		if strings.HasPrefix(name, "LIMIT_") && strings.HasSuffix(name, "_HEADER") {
			flag = strings.TrimPrefix(flag, "limit-")
		}
		if flag != f.Name {
			t.Errorf("the flag of %s is --%s: the page says that it is --%s", name, f.Name, flag)
		}
		if f.Group.Title == "Without effect" {
			silent = append(silent, "`"+name+"`")
			continue
		}
		if f.Group.Title != group {
			ofSecond()
			group = f.Group.Title
			fmt.Fprintf(&b, "\n## %s\n\n| variable | type (default) | meaning |\n|---|---|---|\n", group)
		}
		meaning := strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(strings.TrimSuffix(f.Help, "."))
		preset := shownDefault(f)
		plain := plainFlags["REDIS_"+strings.TrimPrefix(name, "REDIS_PERSECOND_")]
		if plain != nil && plain.Help == f.Help && kindOf(plain) == kindOf(f) && shownDefault(plain) == preset {
			perSecond = append(perSecond, "`"+name+"`")
			continue
		}
		plainFlags[name] = f
		if preset == "false" {
			preset = "" // as the page says of every bool
		}
		if preset != "" {
			preset = " (`" + preset + "`)"
		}
		if n := len(rows) - 1; meaning == "Private key" && n >= 0 { // in one row with its certificate
			before, after, _ := strings.Cut(rows[n], "` | file | ")
			rows[n] = before + "`, `" + name + "` | file | " + strings.TrimSuffix(after, " |\n") + ", and its private key |\n"
			continue
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s%s | %s |\n", name, kindOf(f), preset, meaning))
	}
	ofSecond()
	fmt.Fprintf(&b, "\n## Without effect\n\n%s: [why](compatibility.md#without-effect).\n", strings.Join(silent, ", "))
	if settings < 120 {
		t.Errorf("only %d settings", settings)
	}
	return b.String() + "\n"
}

// kindOf names the values that a setting accepts.
func kindOf(f *kong.Flag) string {
	target := f.Target.Type()
	if target.Kind() == reflect.Pointer {
		target = target.Elem()
	}
	if values := f.Tag.Get("oneof"); values != "" && target.Kind() != reflect.Slice {
		return "`" + strings.ReplaceAll(values, ",", "`, `") + "`"
	}
	texts := target.Kind() == reflect.String || target.Kind() == reflect.Slice
	switch form := f.Tag.PlaceHolder; {
	case texts && form == "FILE":
		return "file"
	case texts && strings.ContainsAny(form, "=:|"):
		return "`" + strings.ReplaceAll(form, "|", "`, `") + "`"
	case target == reflect.TypeFor[time.Duration]():
		return "duration"
	case target.Kind() == reflect.Bool:
		return "bool"
	case target.Kind() == reflect.String:
		return "text"
	case target.Kind() == reflect.Slice:
		return "list"
	case target.Kind() == reflect.Map:
		return "list of pairs"
	case target.Kind() == reflect.Float32, target.Kind() == reflect.Float64:
		return "number"
	}
	return "integer"
}
