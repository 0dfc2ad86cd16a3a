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

// The tables of settings in docs/reference/environment.md match the flags, and a flag's name follows from its variable
// as the page explains. With -update the test writes the tables.
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

// settingsOf holds the rows of one topic of the page: first ratelimitd's own settings (ours), then the settings
// inherited from envoyproxy/ratelimit (lyft).
type settingsOf struct {
	title      string
	ours, lyft []string
	perSecond  []string // settings of the second Redis that mean the same as the first one's
}

// text returns the group's section. The settings of envoyproxy/ratelimit are collapsed, because their users are
// familiar with them.
func (g *settingsOf) text() string {
	const head = "| variable | meaning |\n|---|---|\n"
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n", g.title)
	if len(g.ours) > 0 {
		b.WriteString("\n" + head + strings.Join(g.ours, ""))
	}
	if len(g.lyft) > 0 {
		fmt.Fprintf(&b, "\n<details>\n<summary>From envoyproxy/ratelimit: %d settings</summary>\n\n%s%s", len(g.lyft)+len(g.perSecond), head, strings.Join(g.lyft, ""))
		if g.perSecond != nil {
			fmt.Fprintf(&b, "\n%s describe the second Redis, as the settings without `PERSECOND_` describe the first.\n", strings.Join(g.perSecond, ", "))
		}
		b.WriteString("\n</details>\n")
	}
	return b.String()
}

// settingsTables returns the settings of serve, a section for each group: first the groups with settings of ratelimitd.
func settingsTables(t *testing.T, model *kong.Application) string {
	settings := 0
	plainFlags := make(map[string]*kong.Flag) // flags without REDIS_PERSECOND_, by variable
	var groups []*settingsOf
	var silent []string // settings without effect
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
		if len(groups) == 0 || groups[len(groups)-1].title != f.Group.Title {
			groups = append(groups, &settingsOf{title: f.Group.Title})
		}
		group := groups[len(groups)-1]
		meaning := strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(strings.TrimSuffix(f.Help, "."))
		preset := shownDefault(f)
		plain := plainFlags["REDIS_"+strings.TrimPrefix(name, "REDIS_PERSECOND_")]
		if plain != nil && plain.Help == f.Help && kindOf(plain) == kindOf(f) && shownDefault(plain) == preset {
			group.perSecond = append(group.perSecond, "`"+name+"`")
			continue
		}
		plainFlags[name] = f
		rows := &group.lyft
		if strings.HasPrefix(name, "RATELIMITD_") {
			rows = &group.ours
		}
		if n := len(*rows) - 1; meaning == "Private key" && n >= 0 { // one row for a certificate and its private key
			before, after, _ := strings.Cut((*rows)[n], " (file) | ")
			(*rows)[n] = before + ", `" + name + "` (files) | " + strings.TrimSuffix(after, " |\n") + ", and its private key |\n"
			continue
		}
		*rows = append(*rows, fmt.Sprintf("| %s | %s |\n", assignment(name, kindOf(f), preset), meaning))
	}
	var ours, lyft strings.Builder
	for _, g := range groups {
		if len(g.ours) > 0 {
			ours.WriteString(g.text())
		} else {
			lyft.WriteString(g.text())
		}
	}
	if settings < 120 {
		t.Errorf("only %d settings", settings)
	}
	return ours.String() + lyft.String() +
		fmt.Sprintf("\n## Without effect\n\n%s: [why](compatibility.md#without-effect).\n\n", strings.Join(silent, ", "))
}

// assignment shows a setting with its default, if it has one, and the other values that it accepts.
func assignment(name, kind, preset string) string {
	shown := "`" + name + "`"
	if preset != "" {
		shown = "`" + name + "=" + preset + "`"
	}
	switch values := strings.Replace(kind, ", `"+preset+"`", "", 1); {
	case kind == "file", kind == "list":
		return shown + " (" + kind + ")"
	case !strings.HasPrefix(kind, "`"), kind == "`HOST:PORT`":
		return shown
	case preset != "":
		return shown + ", " + strings.TrimPrefix(values, "`"+preset+"`, ")
	}
	return shown + ": " + kind
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
