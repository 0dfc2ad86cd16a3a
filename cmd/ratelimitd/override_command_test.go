package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

const overridable = `
domain: d
descriptors:
  - key: k
    rate_limit: {name: tenant, unit: year, requests_per_unit: 5}
    overridable: true
  - key: fixed
    rate_limit: {unit: year, requests_per_unit: 5}
`

// The command sets, shows, exports, imports and removes overrides of a running service.
func TestOverrideCommand(t *testing.T) {
	tokens := tokenFile(t, adminToken)
	t.Setenv("RATELIMITD_ADMIN_TOKEN_FILE", tokens)
	r := redistest.Start(t)
	p := startProcess(t, map[string]string{
		"RATELIMITD_OVERRIDES": "redis", "REDIS_URL": r.Addr, "REDIS_SOCKET_TYPE": "tcp", "RATELIMITD_ADMIN_TOKEN_FILE": tokens,
	}, "--rules", rulesOf(t, overridable))
	over := func(want int, args ...string) (out, stderr string) {
		t.Helper()
		args = append([]string{"override"}, args...)
		code, out, stderr := asks(t, append(args, "--server", p.Debug)...)
		if code != want {
			t.Errorf("%q: exit code %d, want %d\n%s%s", args, code, want, out, stderr)
		}
		return out, stderr
	}
	passes := func(value string, want bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; {
			code, out, stderr := asks(t, "call", "-d", "d", "k="+value, "--server", p.GRPC)
			if (code == 0) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("k=%s: exit code %d, %s%s", value, code, out, stderr)
			}
		}
	}

	over(exitNothing, "list")
	if out, _ := over(0, "set", "-d", "d", "k=a", "--block", "--dry-run"); !strings.Contains(out, "none -> blocked") || !strings.Contains(out, "0 used: 5 per year, fixed window (passes) -> blocked (denied)") {
		t.Errorf("a dry run:\n%s", out)
	}
	over(exitNothing, "list")
	if out, _ := over(0, "set", "-d", "d", "k=a", "--block", "--reason", "abuse", "--expires", "7d"); !strings.Contains(out, "d.k  k=a") || !strings.Contains(out, "none -> blocked until 2") {
		t.Errorf("set:\n%s", out)
	}
	passes("b", true)
	passes("a", false)
	for _, command := range []string{"peek", "explain"} {
		code, out, stderr := asks(t, command, "-d", "d", "k=a", "--server", p.Debug)
		if code != 0 || !strings.Contains(out, "override blocked until 2") {
			t.Errorf("%s: exit code %d\n%s%s", command, code, out, stderr)
		}
	}

	out, _ := over(0, "list", "-d", "d", "--rule", "tenant", "k=a", "-o", "json")
	var answer adminv1.OverrideServiceListResponse
	err := protojson.Unmarshal([]byte(out), &answer)
	list := answer.GetOverrides()
	if err != nil || len(list) != 1 || !list[0].GetBlocked() || list[0].GetReason() != "abuse" || list[0].GetVersion() == 0 {
		t.Fatalf("%v %s", err, out)
	}
	record, err := r.Client(t).HGet(t.Context(), "{overrides}:domain:d", "d.k||k=a").Result()
	if lines, _ := over(0, "export", "-o", "json"); err != nil || lines != record+"\n" {
		t.Errorf("an override has two forms: in Redis\n%s\nand exported\n%s%v", record, lines, err)
	}
	if out, _ := over(0, "list"); !strings.Contains(out, "RULE AND CUSTOMER") || !strings.Contains(out, "abuse") {
		t.Errorf("list:\n%s", out)
	}
	if _, stderr := over(1, "set", "-d", "d", "k=a", "--limit", "7", "--expect", fmt.Sprint(list[0].Version+1)); !strings.Contains(stderr, "ABORTED") {
		t.Errorf("another version: %s", stderr)
	}
	if _, stderr := over(1, "set", "-d", "d", "k=a", "--limit", "7", "--expect", fmt.Sprint(list[0].Version+1), "--dry-run"); !strings.Contains(stderr, "ABORTED") {
		t.Errorf("another version, in a dry run: %s", stderr)
	}
	over(0, "set", "-d", "d", "--rule", "tenant", "k=a", "--limit", "7", "--expect", fmt.Sprint(list[0].Version))
	passes("a", true)

	passes("reset", true)
	if out, _ := over(0, "set", "-d", "d", "k=reset", "--limit", "7", "--reset", "--dry-run"); strings.Contains(out, "cleared") {
		t.Errorf("a dry run with a reset:\n%s", out)
	}
	if out, _ := over(0, "set", "-d", "d", "k=reset", "--limit", "7", "--reset"); !strings.Contains(out, "counters cleared: 1") {
		t.Errorf("with a reset:\n%s", out)
	}
	if code, out, stderr := asks(t, "peek", "-d", "d", "k=reset", "--server", p.Debug); code != 0 || !strings.Contains(out, "0 of ") {
		t.Errorf("after a reset: exit code %d\n%s%s", code, out, stderr)
	}
	over(0, "rm", "-d", "d", "k=reset")

	for form, flags := range map[string][]string{"yaml": nil, "lines": {"-o", "json"}} {
		text, _ := over(0, append([]string{"export"}, flags...)...)
		file := filepath.Join(t.TempDir(), form)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		over(0, "rm", "-d", "d", "k=a")
		over(exitNothing, "rm", "-d", "d", "k=a")
		if out, _ := over(0, "import", file); out != "1 overrides written\n" {
			t.Errorf("%s: %s\n%s", form, out, text)
		}
		if out, _ := over(0, "list"); !strings.Contains(strings.Join(strings.Fields(out), " "), "d.k k=a 7 ") {
			t.Errorf("%s: %s\n%s", form, out, text)
		}
	}
	if out, _ := over(0, "history", "--last", "3"); strings.Count(out, "version ") != 3 || !strings.Contains(out, "none -> 7") {
		t.Errorf("history:\n%s", out)
	}
	if _, stderr := over(1, "set", "-d", "d", "fixed=v", "--limit", "7"); !strings.Contains(stderr, "overridable") {
		t.Errorf("a rule that allows none: %s", stderr)
	}
	over(exitNothing, "set", "-d", "d", "nothing=v", "--limit", "7")
}

// Where overrides are in a file, the command writes nothing: it prints the lines to add, replace or remove there. The
// rest works as with Redis.
func TestOverrideCommandWithAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "overrides.yaml")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("# none yet\noverrides: []\n")
	tokens := tokenFile(t, adminToken)
	t.Setenv("RATELIMITD_ADMIN_TOKEN_FILE", tokens)
	p := startProcess(t, map[string]string{"RATELIMITD_OVERRIDES": file, "RATELIMITD_ADMIN_TOKEN_FILE": tokens}, "--rules", rulesOf(t, overridable))
	over := func(want int, args ...string) (out, stderr string) {
		t.Helper()
		code, out, stderr := asks(t, append(append([]string{"override"}, args...), "--server", p.Debug)...)
		if code != want {
			t.Errorf("%q: exit code %d, want %d\n%s%s", args, code, want, out, stderr)
		}
		return out, stderr
	}
	if out, _ := over(0, "set", "-d", "d", "k=a", "--limit", "7", "--dry-run"); !strings.Contains(out, "none -> 7") {
		t.Errorf("a dry run:\n%s", out)
	}
	_, stderr := over(1, "set", "-d", "d", "k=a", "--limit", "7", "--reason", "abuse", "--reset")
	_, yaml, found := strings.Cut(stderr, ": change that file\nadd this to `overrides`:\n")
	if !found || !strings.Contains(stderr, file) || strings.Contains(stderr, "TLS") {
		t.Fatal(stderr)
	}
	p.Log.Find(t, "the change", 0, func(line string) bool { return strings.Contains(line, "change of an override") })
	if lines := p.Log.With("change of an override"); len(lines) != 1 || !strings.Contains(lines[0], `"result":"failed"`) || strings.Contains(lines[0], "requests_per_unit") {
		t.Errorf("%q", lines)
	}
	put("# one\noverrides:\n" + yaml)
	limitOf(t, p, "a", 7)
	if out, _ := over(0, "list", "-d", "d"); !strings.Contains(out, "abuse") {
		t.Errorf("list:\n%s", out)
	}
	if _, stderr := over(1, "history"); !strings.Contains(stderr, "see the history of that file where you keep it") {
		t.Errorf("history: %s", stderr)
	}
	if _, stderr := over(1, "set", "-d", "d", "k=a", "--block"); !strings.Contains(stderr, "on line 3, replace the override by this:\n  - domain: d\n") || !strings.Contains(stderr, "blocked: true") {
		t.Error(stderr)
	}
	if _, stderr := over(1, "rm", "-d", "d", "k=a"); !strings.Contains(stderr, "on line 3, remove this override:\n  - domain: d\n") {
		t.Error(stderr)
	}
	over(exitNothing, "rm", "-d", "d", "k=b")
}

// keptWhileRead reads a file of overrides and returns by how many bytes the live heap has grown in the middle of it.
func keptWhileRead(t *testing.T, name string) int64 {
	t.Helper()
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	file, err := openOverridesFile(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.close() }()
	read, kept := 0, int64(0)
	for _, err := range file.all() {
		if err != nil {
			t.Fatal(err)
		}
		if read++; read == 1000 {
			kept = live() - before
		}
	}
	return kept
}

// A file of any size can be imported, such as the copy of a million overrides. All of it is checked before anything is
// written.
func TestImportOfALargeFile(t *testing.T) {
	racetest.Sequential(t)
	const n = 30_000
	file := filepath.Join(t.TempDir(), "copy.jsonl")
	text := []byte("# last good copy of the overrides in Redis {}\n")
	for i := range n {
		text = append(override.AppendJSON(text, &override.Override{
			Identity: override.Identity{Domain: "d", Rule: "d.k", Entries: []descriptor.Entry{{Key: "k", Value: strconv.Itoa(i)}}},
			Numbers:  override.Numbers{Kind: override.Replace, Requests: uint64(i)}, Reason: strings.Repeat("r", override.MaxText),
		}), '\n')
	}
	if len(text) <= override.MaxFileSize {
		t.Fatalf("only %d bytes", len(text))
	}
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tokens := tokenFile(t, adminToken)
	t.Setenv("RATELIMITD_ADMIN_TOKEN_FILE", tokens)
	p := startProcess(t, map[string]string{
		"RATELIMITD_OVERRIDES": "redis", "REDIS_URL": redistest.Start(t).Addr, "REDIS_SOCKET_TYPE": "tcp", "RATELIMITD_ADMIN_TOKEN_FILE": tokens,
	}, "--rules", rulesOf(t, overridable))

	write(append(slices.Clone(text), "{\"domian\":\"d\"}\n"...))
	code, _, stderr := asks(t, "override", "import", file, "--server", p.Debug)
	if want := fmt.Sprintf("copy.jsonl:%d:2: unknown field \"domian\": did you mean `domain`?", n+2); code != 2 || !strings.Contains(stderr, want) {
		t.Errorf("a mistake in the last line: exit code %d, %s, want %s", code, stderr, want)
	}
	if code, out, _ := asks(t, "override", "list", "--server", p.Debug); code != exitNothing {
		t.Errorf("overrides were written before the mistake was found: exit code %d\n%s", code, out)
	}
	write(text)
	if kept := keptWhileRead(t, file); kept > 2<<20 {
		t.Errorf("%d bytes of memory are kept while a file of %d bytes is read", kept, len(text))
	}
	code, out, stderr := asks(t, "override", "import", file, "--server", p.Debug)
	if code != 0 || out != fmt.Sprintf("%d overrides written\n", n) {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	if code, out, _ := asks(t, "override", "list", "-d", "d", fmt.Sprintf("k=%d", n-1), "--server", p.Debug); code != 0 || !strings.Contains(out, "29999") {
		t.Errorf("the last one: exit code %d\n%s", code, out)
	}

	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { _ = os.WriteFile(pipe, text, 0o600) }()
	if code, _, stderr := asks(t, "override", "import", pipe, "--server", p.Debug); code != 2 || !strings.Contains(stderr, "can be read only once: save it in a file first") {
		t.Errorf("a pipe: exit code %d, %s", code, stderr)
	}
}

func TestMistakesOfOverride(t *testing.T) {
	racetest.Sequential(t)
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte(`{"domain": "d", "rule": "d.k", "entries": [{"key": "k", "value": "v"}], "blocked": true}`+"\n"+`{"domian": "d"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"must be one of":             {"sett"},
		"write --domain and one":     {"set", "k=v", "--limit", "5"},
		"write one of --limit, --f":  {"set", "-d", "d", "k=v"},
		"write one of --limit":       {"set", "-d", "d", "k=v", "--limit", "5", "--block"},
		"rm takes no numbers":        {"rm", "-d", "d", "k=v", "--limit", "5"},
		"rm takes no --reset":        {"rm", "-d", "d", "k=v", "--reset"},
		"--expires 5y: write a time": {"set", "-d", "d", "k=v", "--block", "--expires", "5y"},
		"--expires -5m: write":       {"set", "-d", "d", "k=v", "--block", "--expires=-5m"},
		"--not-before x: write":      {"set", "-d", "d", "k=v", "--block", "--not-before", "x"},
		"argument 1: ":               {"list", "k"},
		"--rule needs --domain":      {"list", "--rule", "r"},
		"write one file":             {"import"},
		"import takes no --domain, --limit-name, --expires, --reset": {"import", bad, "-d", "d", "--limit-name", "l", "--expires", "24h", "--reset"},
		"import takes no --rule, --limit, --burst, --factor, --unlimited, --block, --not-before": {
			"import", bad, "--rule", "r", "--limit", "0", "--burst", "1", "--factor", "1", "--unlimited", "--block", "--not-before", "1h",
		},
		"list takes no --limit-name, --block":  {"list", "--limit-name", "l", "--block"},
		"history takes no --reason, --dry-run": {"history", "--reason", "x", "--dry-run"},
		"export takes no --expect":             {"export", "--expect", "0"},
		"read overrides: ":                     {"import", filepath.Join(t.TempDir(), "none")},
		"bad:2:2: unknown field":               {"import", bad},
		"--last 0: use a number":               {"history", "--last", "0"},
	} {
		code, out, stderr := asks(t, append([]string{"override"}, args...)...)
		if code != 2 || !strings.Contains(stderr, want) || out != "" {
			t.Errorf("%q: exit code %d, %s%s, want %q", args, code, out, stderr, want)
		}
	}
}

// More overrides than YAML of 16 MiB holds are exported as lines, which import reads.
func TestManyOverridesAreExportedAsLines(t *testing.T) {
	racetest.Sequential(t)
	const n = 105_000
	text := []byte("overrides:\n")
	for i := range n {
		text = fmt.Appendf(text, "- {domain: d, rule: d.k, entries: k=customer-%d, requests_per_unit: 7, reason: %s}\n", i, strings.Repeat("why ", 12))
	}
	file := filepath.Join(t.TempDir(), "overrides.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, map[string]string{"RATELIMITD_OVERRIDES": file}, "--rules", rulesOf(t, "domain: d\ndescriptors: [{key: k, overridable: true, rate_limit: {unit: year, requests_per_unit: 5}}]\n"))

	code, out, stderr := asks(t, "override", "export", "--server", p.Debug)
	if code != 0 || len(out) < override.MaxFileSize/2 || strings.Count(out, "\n") != n {
		t.Fatalf("exit code %d, %d bytes in %d lines\n%s", code, len(out), strings.Count(out, "\n"), stderr)
	}
	found := 0
	for _, err := range override.Lines("export", strings.NewReader(out)) {
		if err != nil {
			t.Fatal(err)
		}
		found++
	}
	if found != n {
		t.Errorf("%d overrides are in the export, want %d", found, n)
	}
}

// A source that has no room for an override reports that, instead of an unreachable source.
func TestOverridesWithoutRoom(t *testing.T) {
	r := redistest.Start(t)
	tokens := tokenFile(t, adminToken)
	t.Setenv("RATELIMITD_ADMIN_TOKEN_FILE", tokens)
	p := startProcess(t, map[string]string{"RATELIMITD_OVERRIDES": "redis", "REDIS_URL": r.Addr, "REDIS_SOCKET_TYPE": "tcp", "RATELIMITD_ADMIN_TOKEN_FILE": tokens}, "--rules", rulesOf(t, overridable))
	if err := r.Client(t).HSet(t.Context(), "{overrides}:version", "count", override.MaxOverrides).Err(); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := asks(t, "override", "set", "-d", "d", "k=a", "--block", "--server", p.Debug, "--timeout", "1m")
	if code != 1 || !strings.Contains(stderr, "RESOURCE_EXHAUSTED") || !strings.Contains(stderr, "remove some first") || strings.Contains(stderr, "TLS") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}
