package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

const onePasses = "cases:\n  - name: one passes\n    steps:\n      - {descriptors: second=x, expect: OK}\n"

// Every command that prints data prints the same as JSON and as YAML.
func TestYAMLIsTheJSON(t *testing.T) {
	racetest.Sequential(t)
	rules := rulesOf(t, edgeRules)
	write(t, rules, "rules0_test.yaml", onePasses)
	write(t, rules, "counted.yaml", "domain: counted\ndescriptors:\n  - {key: k, usage: true, rate_limit: {unit: year, requests_per_unit: 5}}\n")
	overrides := file(t, "overrides: [{domain: edge, rule: edge.path, entries: path=/x, blocked: true}]\n")
	p := startProcess(t, map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken, "RATELIMITD_OVERRIDES": overrides}, "--rules", rules)
	t.Setenv("RATELIMITD_ADMIN_TOKEN", adminToken)
	root := filepath.Join("..", "..")
	lines := map[string]string{
		"check": rules, "test": rules, "version": "", "schema": "tests",
		"explain":  "-d edge --at 2026-03-10 --rules " + rules + " method=GET,path=/search",
		"call":     "-d edge --hits 0 -s " + p.GRPC + " method=GET,path=/search",
		"peek":     "-d edge -s " + p.Debug + " method=GET,path=/search",
		"reset":    "-d edge -s " + p.Debug + " method=GET,path=/search",
		"override": "list -s " + p.Debug,
		"usage":    "-d counted -w k=a -s " + p.Debug,
		"shares":   "-d edge -s " + p.Debug,
		"fleet":    "-s " + p.Debug,
		"regions":  "-s " + p.Debug,
		"conform":  "--target " + p.GRPC + " --rules " + rules + " --run ^protocol/no-domain",
		"simulate": "--rules " + root + "/config/domains --mapping " + root + "/examples/simulate/envoy.yaml --log " + root + "/examples/simulate/access.log",
	}
	if code, _, stderr := asks(t, "call", "-d", "counted", "k=a", "-s", p.GRPC); code != 0 {
		t.Fatal(stderr)
	}
	await(t, "the counter is in the index", func() bool {
		code, _, _ := asks(t, "usage", "-d", "counted", "-w", "k=a", "-s", p.Debug)
		return code == 0
	})
	model, _ := modelOf(t)
	for _, n := range model.Children {
		line, listed := lines[n.Name]
		if !listed {
			if notData[n.Name] == "" {
				t.Errorf("%s prints data and is not in this test", n.Name)
			}
			continue
		}
		var values [2]any
		for i, form := range []string{"json", "yaml"} {
			code, stdout, stderr := asks(t, append(append([]string{n.Name}, strings.Fields(line)...), "-o", form)...)
			if code != 0 {
				t.Fatalf("%s -o %s: exit code %d: %s", n.Name, form, code, stderr)
			}
			text := []byte(stdout)
			if form == "yaml" {
				all, err := yamlform.Decode(text)
				if err != nil || len(all) != 1 || json.Valid(text) {
					t.Fatalf("%s -o yaml: %v, %d documents:\n%s", n.Name, err, len(all), text)
				}
				if text, err = json.Marshal(all[0]); err != nil {
					t.Fatal(err)
				}
			}
			if err := json.Unmarshal(text, &values[i]); err != nil {
				t.Fatalf("%s -o %s: %v:\n%s", n.Name, form, err, text)
			}
			values[i] = withoutTimes(values[i])
		}
		if !reflect.DeepEqual(values[0], values[1]) {
			t.Errorf("%s: JSON and YAML differ:\n%v\n%v", n.Name, values[0], values[1])
		}
	}
}

// varies are times, durations and 64-bit numbers in JSON.
var varies = regexp.MustCompile(`^[0-9.]+s?$|^[0-9]{4}-[0-9]{2}-[0-9]{2}T`)

// withoutTimes leaves out values that differ from call to call.
func withoutTimes(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if name, _ := v["key"].(string); strings.HasSuffix(name, "-Reset") { // a header, in seconds
			delete(v, "value")
		}
		for name, value := range v {
			text, _ := value.(string)
			if _, number := value.(float64); number || varies.MatchString(text) {
				delete(v, name)
				continue
			}
			v[name] = withoutTimes(value)
		}
	case []any:
		for i := range v {
			v[i] = withoutTimes(v[i])
		}
	}
	return v
}

// Wherever a command reads a file, - is the standard input.
func TestStandardInput(t *testing.T) {
	racetest.Sequential(t)
	rules := rulesOf(t, fiveADay)
	file := filepath.Join(rules, "rules0.yaml")
	root := filepath.Join("..", "..")
	mapping, log := filepath.Join(root, "examples", "simulate", "envoy.yaml"), filepath.Join(root, "examples", "simulate", "access.log")
	shipped, err := os.ReadFile(filepath.Join(root, "config", "domains", "messaging.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	authority := tlstest.NewAuthority(t, "authority")
	pair := authority.Issue(t, "client")
	p := startProcess(t, map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken}, "--rules", rules)
	asking := "-d d k=a --timeout 3s --server "
	type input struct {
		args, stdin string
		code        int
		says        string
	}
	cases := map[string]input{
		"check path":          {"check -", fiveADay, 0, ""},
		"test path":           {"test -", "rules: " + file + "\n" + strings.ReplaceAll(onePasses, "second", "k"), 0, "1 case passed"},
		"simulate rules":      {"simulate --rules - --mapping " + mapping + " --log " + log, string(shipped), 0, ""},
		"simulate against":    {"simulate --against - --rules " + rules + " --mapping " + mapping + " --log " + log, string(shipped), 0, ""},
		"check overrides":     {"check --overrides - " + rules, "overrides: []\n", 0, ""},
		"explain overrides":   {"explain -d d k=a --rules " + rules + " --overrides -", "overrides: []\n", 0, "5 per day"},
		"simulate overrides":  {"simulate --overrides - --rules " + rules + " --mapping " + mapping + " --log " + log, "overrides: []\n", 0, ""},
		"simulate log":        {"simulate --log - --rules " + rules + " --mapping " + mapping, read(log), 0, ""},
		"simulate mapping":    {"simulate --mapping - --rules " + rules + " --log " + log, read(mapping), 0, ""},
		"explain rules":       {"explain -d d k=a --rules -", fiveADay, 0, "<stdin>:"},
		"explain token-file":  {"explain --token-file - " + asking + p.Debug, adminToken, 0, "5 per day"},
		"peek token-file":     {"peek --token-file - " + asking + p.Debug, adminToken, 0, "5 per day"},
		"override argument":   {"override import - --server " + p.Debug, "overrides: []\n", 0, "0 overrides written"},
		"override token-file": {"override list --timeout 3s --token-file - --server " + p.Debug, adminToken, 1, "RATELIMITD_OVERRIDES"},
		"usage token-file":    {"usage -d d --where k=a --timeout 3s --token-file - --server " + p.Debug, adminToken, exitNothing, ""},
		"shares token-file":   {"shares -d d --token-file - --server " + p.Debug, adminToken, 0, "no client of this replica"},
		"fleet token-file":    {"fleet --token-file - --server " + p.Debug, adminToken, 0, "live"},
		"regions token-file":  {"regions --token-file - --server " + p.Debug, adminToken, 0, "no region is set"},
		"reset token-file":    {"reset --token-file - " + asking + p.Debug, adminToken, 0, "5 per day"},
	}
	// A bad file is named; a good one leads to a server that speaks no TLS.
	conform := "conform --wait 1ms --run ^protocol/ --rules " + t.TempDir() + " --target " + p.GRPC
	for _, command := range []string{conform, "explain -d d k=a", "call -d d k=a", "peek -d d k=a", "reset -d d k=a", "override list -d d k=a", "usage -d d -w k=a", "shares -d d", "fleet", "regions"} {
		name, _, _ := strings.Cut(command, " ")
		if command += " --timeout 3s"; name != "conform" {
			command += " --server " + p.GRPC
		}
		cases[name+" ca"] = input{command + " --ca -", string(authority.PEM), 1, "UNAVAILABLE"}
		cases[name+" cert"] = input{command + " --cert - --key -", string(pair.Cert) + string(pair.Key), 1, "UNAVAILABLE"}
		cases[name+" key"] = input{command + " --cert - --key -", "nothing", 2, "certificate <stdin> and key <stdin>"}
	}
	model, _ := modelOf(t)
	for _, n := range model.Children {
		if n.Name == "serve" {
			continue // it reads its files again when they change
		}
		values := slices.Clone(n.Positional)
		for _, f := range n.Flags {
			values = append(values, f.Value)
		}
		for _, v := range values {
			c, listed := cases[n.Name+" "+v.Name]
			if !listed {
				if isFile(v) && !v.Tag.Has("writes") {
					t.Errorf("%s reads a file, %s, and is not in this test", n.Name, v.Name)
				}
				continue
			}
			cmd := command(t, nil, strings.Fields(c.args)...)
			cmd.Stdin = strings.NewReader(c.stdin)
			if out, code := untilEnd(t, cmd); code != c.code || !strings.Contains(out, c.says) {
				t.Errorf("%s: exit code %d, want %d and %q:\n%s", c.args, code, c.code, c.says, out)
			}
			delete(cases, n.Name+" "+v.Name)
		}
	}
	for name := range cases {
		t.Errorf("there is no %s", name)
	}
	if code, _, stderr := asks(t, strings.Fields("simulate --rules - --log - --mapping "+mapping)...); code != 2 || !strings.Contains(stderr, "--rules, --log are all -") {
		t.Errorf("two files from one input: exit code %d: %s", code, stderr)
	}
	cmd := command(t, nil, "check", "-o", "plain", "-")
	cmd.Stdin = strings.NewReader("domain: d\ndescriptors: [{key: k, rate_limit: {unit: dy, requests_per_unit: 5}}]\n")
	if out, code := untilEnd(t, cmd); code != 1 || !strings.HasPrefix(out, "<stdin>:2:") {
		t.Errorf("a mistake: exit code %d: %s", code, out)
	}
}

// Ctrl-C ends a command with 130, and SIGTERM with 143. The files that it was to write are as they were before.
func TestInterruptions(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, s := range []struct {
		signal syscall.Signal
		code   int
	}{{syscall.SIGINT, 130}, {syscall.SIGTERM, 143}} {
		dir := t.TempDir()
		verdicts := filepath.Join(dir, "verdicts")
		write(t, dir, "verdicts", "earlier")
		cmd := command(t, nil, "simulate", "--rules", filepath.Join(root, "config", "domains"), "--mapping", filepath.Join(root, "examples", "simulate", "envoy.yaml"),
			"--log", "-", "--verdicts", verdicts)
		logs, err := cmd.StdinPipe() // it stays open: the command waits for more lines
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, "the file is begun", func() bool { return len(namesIn(t, dir)) == 2 })
		if err := cmd.Process.Signal(s.signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		_ = logs.Close()
		if code := cmd.ProcessState.ExitCode(); code != s.code || !strings.Contains(out.String(), "ratelimitd: stopped by a signal: "+s.signal.String()) {
			t.Errorf("%s: exit code %d, want %d: %s", s.signal, code, s.code, &out)
		}
		if names := namesIn(t, dir); !slices.Equal(names, []string{"verdicts"}) {
			t.Errorf("%s leaves %v", s.signal, names)
		}
		if text, err := os.ReadFile(verdicts); err != nil || string(text) != "earlier" {
			t.Errorf("%s leaves %q, %v", s.signal, text, err)
		}
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

func await(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for !reached() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("it did not happen that %s", what)
		}
	}
}

// A file appears when it is complete. An error leaves the earlier one.
func TestNewFiles(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for i, at := range []string{name, filepath.Join(dir, "link")} {
		f, err := createFile(at)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(f, "%d", i)
		if before, _ := os.ReadFile(name); i == 0 && before != nil || i > 0 && string(before) != "0" {
			t.Errorf("%s has %q before it is complete", at, before)
		}
		if err := f.commit(); err != nil {
			t.Fatal(err)
		}
		f.discard()
		if after, _ := os.ReadFile(name); string(after) != fmt.Sprint(i) {
			t.Errorf("%s has %q", at, after)
		}
	}
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	again, err := createFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = again.WriteString("1")
	if err := again.commit(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v: who may read the file has changed", info.Mode(), err)
	}
	f, err := createFile(name)
	if err != nil {
		t.Fatal(err)
	}
	f.discard()
	if text, _ := os.ReadFile(name); string(text) != "1" || len(namesIn(t, dir)) != 2 {
		t.Errorf("%q, and the directory has %v", text, namesIn(t, dir))
	}
	for _, bad := range []string{"-", dir, filepath.Join(dir, "no", "such")} {
		if f, err := createFile(bad); err == nil {
			f.discard()
			t.Errorf("%s was begun", bad)
		}
	}
	for range 2 { // a device is written as it is
		f, err := createFile(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.commit(); err != nil {
			t.Error(err)
		}
	}
}

// isFile reports whether a value is the name of a file or directory.
func isFile(v *kong.Value) bool {
	return v.Tag.PlaceHolder == "FILE" || v.Tag.PlaceHolder == "DIR" || v.Flag == nil && v.Name == "path"
}
