package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

var update = flag.Bool("update", false, "write what the commands say into the documentation; read it before it is kept")

// varying matches output that differs in every run: numbers that depend on the time of day, and positions of rules in a
// file.
var varying = regexp.MustCompile(`\.yaml:\d+:\d+|\b(\d+(\.\d+)?(d|h|m|s|ms|us))+\b|[\d.]+ answers|(Reset|After): \d+|t=\d+`)

// The examples in docs/reference/commands.md match the output of the commands, run in order against one service with
// the shipped rules.
func TestDocumentedCommands(t *testing.T) {
	racetest.Sequential(t)
	t.Chdir("../..")
	tokens := tokenFile(t, adminToken)
	p := startProcess(t, map[string]string{"RATELIMITD_ADMIN_TOKEN_FILE": tokens}, "--rules", filepath.Join("config", "domains"))
	t.Setenv("RATELIMITD_ADMIN_TOKEN_FILE", tokens)
	servers := map[string]string{"call": p.GRPC, "peek": p.Debug, "reset": p.Debug}

	page := filepath.Join("docs", "reference", "commands.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end, prompt = "<!-- begin sample -->\n```console\n", "```\n<!-- end sample -->", "$ ratelimitd "
	var out bytes.Buffer
	rest, samples := string(text), 0
	for {
		before, after, found := strings.Cut(rest, begin)
		out.WriteString(before)
		if !found {
			break
		}
		sample, behind, _ := strings.Cut(after, end)
		rest, samples = behind, samples+1
		line, want, _ := strings.Cut(sample, "\n")
		args := strings.Fields(strings.TrimPrefix(line, prompt))
		if !strings.HasPrefix(line, prompt) || len(args) == 0 {
			t.Fatalf("a sample starts with %q", line)
		}
		if at := servers[args[0]]; at != "" {
			args = append(args, "--server", at)
		}
		_, got, stderr := asks(t, args...)
		if stderr != "" {
			t.Errorf("%s\n%s", line, stderr)
		}
		if varying.ReplaceAllString(got, "#") != varying.ReplaceAllString(want, "#") {
			if *update {
				want = got
			} else {
				t.Errorf("%s says otherwise than %s; if it is right: go test -run DocumentedCommands -update\n--- documented\n%s--- got\n%s", line, page, want, got)
			}
		}
		fmt.Fprintf(&out, "%s%s\n%s%s", begin, line, want, end)
	}
	if samples < 4 {
		t.Errorf("only %d samples in %s", samples, page)
	}
	if *update && out.String() != string(text) {
		if err := os.WriteFile(page, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The table of exit codes in docs/reference/commands.md matches the commands' help, with one row for all commands with
// the same failure. Success and an invalid command line stand above it.
func TestExitCodesAreDocumented(t *testing.T) {
	racetest.Sequential(t)
	page := filepath.Join("..", "..", "docs", "reference", "commands.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	model, commands := modelOf(t)
	var table strings.Builder
	table.WriteString("| code | meaning | commands |\n|---|---|---|\n")
	var failures []exitCode
	by := make(map[exitCode][]string)
	for _, n := range visible(model) {
		for _, e := range commands[n.Name].about().exits {
			if e.code == 0 || e.code == 2 && strings.HasPrefix(e.meaning, "The command line") {
				continue // the page lists this for all commands, above the table
			}
			if by[e] == nil {
				failures = append(failures, e)
			}
			by[e] = append(by[e], "`"+n.Name+"`")
		}
	}
	slices.SortStableFunc(failures, func(a, b exitCode) int { return a.code - b.code })
	for _, f := range failures {
		fmt.Fprintf(&table, "| %d | %s | %s |\n", f.code, f.meaning, strings.Join(by[f], ", "))
	}
	const begin, end = "<!-- begin exit codes -->\n", "<!-- end exit codes -->"
	before, rest, _ := strings.Cut(string(text), begin)
	documented, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatal("there is no table of exit codes")
	case documented == table.String():
	case *update:
		if err := os.WriteFile(page, []byte(before+begin+table.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table is outdated; if this is right: go test -run ExitCodesAreDocumented -update\n%s", &table)
	}
}
