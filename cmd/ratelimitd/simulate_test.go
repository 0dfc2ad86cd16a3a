package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// simulateRules runs `ratelimitd simulate` and returns its exit code and its output.
func simulateRules(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"simulate"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestSimulateCommand(t *testing.T) {
	racetest.Sequential(t)
	t.Chdir("../..")
	dir := writeRules(t, map[string]string{
		"empty.log":   "",
		"other.log":   "this is\nno access log\n",
		"nginx.yaml":  "format: nginx\ndomain: shop\ndescriptors: [[{key: remote_address, field: remote_addr}]]\n",
		"bad.yaml":    "format: envoi\ndomain: shop\n",
		"absent.yaml": "format: envoy\ndomain: shop\ndescriptors: [[{key: k, field: RESPONSE_FLAGS}]]\n",
		"text.yaml":   "format: text\npattern: '%when%,%usr%'\ntime: when\ndomain: d\ndescriptors: [[{key: k, field: user}]]\n",
		"typo.yaml":   "domain: shopp\ndescriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 1}}]\n",
		"over.yaml":   "domain: shop\ndescriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 1, active: {until: 2001-01-01}}}]\n",
		"key.yaml":    "domain: shop\ndescriptors: [{key: remote_addr, rate_limit: {unit: minute, requests_per_unit: 1}}]\n",
		"login.yaml":  "domain: shop\ndescriptors: [{key: method, descriptors: [{key: path, descriptors: [{key: remote_address, rate_limit: {unit: day, requests_per_unit: 1000}}]}]}]\n",
	})
	in := func(name string) string { return filepath.Join(dir, name) }
	badRules := writeRules(t, map[string]string{"r.yaml": "domain: d\ndescriptor: []\n"})
	given := []string{"--mapping", "examples/simulate/envoy.yaml", "--log", "examples/simulate/access.log", "--rules"}
	same := append(slices.Clip(given), "examples/simulate/rules")
	changed := append(slices.Clip(given), "examples/simulate/stricter", "--against", "examples/simulate/rules")
	with := func(args []string, more ...string) []string { return append(slices.Clip(args), more...) }
	for _, c := range []struct {
		args   []string
		code   int
		stdout string // part of it
		stderr string
	}{
		{same, 0, "984 requests of examples/simulate/access.log, 2026-03-02 09:00:18 to 09:53:13 UTC\n", ""},
		{with(same, "--top", "1"), 0, "and 1 more rule\n", ""},
		{with(same, "--customer", "method"), 0, "\n2 customers in all\n", ""},
		// longer than a terminal shows
		{with(same, "--customer", "method,path,remote_address"), 0, "\nmethod=POST, path=/login, remote_address=192.0.2.9 ", ""},
		{with(same, "--customer", "user"), 2, "", "--customer: no descriptor has an entry \"user\" that comes from the log; there are `remote_address`, `method` and `path`"},
		{with(same, "--color", "always"), 0, "\x1b[1m984 requests\x1b[0m", ""},
		{with(same, "--fail-on", "denied"), 1, "984 requests", "denied: 48 of 984 requests, which is more than 0%"},
		{with(same, "--fail-on", "denied"), 1, "984 requests", "denied: 48 of 984 requests, which is more than 0%"},
		{with(same, "--fail-on", "denied", "--fail-above", "5"), 0, "984 requests", ""},
		{with(same, "--fail-on", "denied", "--fail-above", "4.5"), 1, "984 requests", "denied: 48 of 984 requests, which is more than 4.5%"},
		{with(same, "--fail-on", "failed"), 0, "984 requests", ""},
		{with(same, "--fail-on", "failed", "--memory-max-counters", "2"), 1, "no decision could be made", "failed: "},
		{with(same, "--shadow-mode", "--fail-on", "denied"), 0, "984 requests", ""},
		{with(same, "--max-errors", "0"), 2, "", "more than 0 lines cannot be used:\n  examples/simulate/access.log:301: there is no"},
		{with(same, "--max-errors", "0%"), 2, "", "more than 0 lines cannot be used:\n  examples/simulate/access.log:301: there is no"},
		{with(same, "--max-errors", "0.05%"), 2, "", "1 of 1105 lines cannot be used, which is more than 0.05%:\n  examples/simulate/access.log:301: there is no"},
		{with(same, "--max-errors", "0.1%"), 0, "984 requests", ""},
		{with(same, "--max-errors=-1"), 0, "984 requests", ""},
		{with(same, "--max-errors", "101%"), 2, "", "--max-errors 101%: use a number of lines, or a share from 0% to 100%"},
		{with(same, "--max-errors", "nan%"), 2, "", "--max-errors nan%: use a number of lines, or a share"},
		{with(same, "--max-errors", "few"), 2, "", "--max-errors few: use a number of lines such as 1000, a share such as 0.5%, or -1"},
		{with(changed, "-o", "markdown"), 0, "### Rate limits: 3 customers would be newly denied\n", ""},
		{with(same, "-o", "markdown"), 0, "### Rate limits: 2 customers would be denied\n", ""},
		{changed, 0, "newly denied: 277 requests of 3 customers\nnewly passed: 16 requests of 2 customers\n", ""},
		{with(changed, "--fail-on", "newly-denied"), 1, "newly denied: 277", "newly-denied: 277 of 984 requests, which is more than 0%"},
		{with(changed, "--fail-on", "newly-denied"), 1, "newly denied: 277", "newly-denied: 277 of 984 requests, which is more than 0%"},
		{with(changed, "--fail-on", "newly-denied", "--fail-above", "30"), 0, "newly denied: 277", ""},
		{with(same, "--against", "examples/simulate/rules", "--fail-on", "newly-denied"), 0, "newly denied: 0 requests of 0 customers\n", ""},
		{with(same, "--fail-on", "newly-denied"), 2, "", "--fail-on newly-denied needs --against"},
		{with(same, "--fail-on", "newly-passed"), 2, "", "--fail-on newly-passed needs --against"},
		{with(changed, "--fail-on", "newly-passed"), 1, "newly passed: 16", "newly-passed: 16 of 984 requests, which is more than 0%"},
		{with(changed, "--fail-on", "newly-passed", "--fail-above", "2"), 0, "newly passed: 16", ""},
		{with(same, "--fail-on", "no-rule"), 0, "984 requests", ""},
		{with(given, in("login.yaml"), "--fail-on", "no-rule"), 1, "984 requests", "no-rule: 914 of 984 requests, which is more than 0%"},
		{with(given, in("login.yaml"), "--fail-on", "no-rule", "--fail-above", "93"), 0, "984 requests", ""},
		{with(given, in("typo.yaml")), 0, "match no request at all: requests have the domain \"shop\", did you mean `shopp`?", ""},
		{with(given, in("typo.yaml"), "--fail-on", "denied"), 2, "did you mean `shopp`?", "typo.yaml match no request at all"},
		{with(given, in("typo.yaml"), "--fail-on", "failed", "--fail-above", "100"), 2, "did you mean `shopp`?", "typo.yaml match no request at all"},
		{with(given, in("key.yaml"), "--fail-on", "no-rule"), 2, "match no request at all: compare the keys", "key.yaml match no request at all"},
		{with(given, in("over.yaml"), "--fail-on", "no-rule"), 2, "is active at the time of a request that it matches", "over.yaml is active at the time of a request that it matches, so nothing was tried"},
		{with(same, "--fail-on", "nothing"), 2, "", "must be one of"},
		{with(same, "--fail-above", "101"), 2, "", "--fail-above 101: use a share from 0 to 100"},
		{with(same, "--reorder", "25h"), 2, "", "--reorder 25h0m0s: use a time from 0s to 24h"},
		{with(same, "--verdicts", in("no/x.json")), 2, "", "write verdicts: "},
		{with(given, badRules), 2, "", "r.yaml:2:1: unknown key `descriptor`: did you mean `descriptors`?"},
		{with(given, "examples/simulate/rules/shop.yaml"), 0, "rules of", ""},
		{with(given, in("gone")), 2, "", "no such file"},
		{with(given, dir), 2, "", "rules of "},
		{[]string{"--rules", "examples/simulate/rules", "--log", in("other.log"), "--mapping", "examples/simulate/envoy.yaml"}, 2, "", "no line of the log is a request: 2 lines, 2 of them cannot be used, the first: " + in("other.log") + ":1: it does not start with"},
		{[]string{"--rules", "examples/simulate/rules", "--log", in("other.log"), "--mapping", in("nginx.yaml")}, 2, "", "no line of the log is a request: 2 lines, 2 of them cannot be used, the first: " + in("other.log") + ":1: column 1: there is no \" - \" after remote_addr, as the log_format says\n  lines must have nginx's combined format: if nginx.conf has a log_format"},
		{[]string{"--rules", "examples/simulate/rules", "--log", in("empty.log"), "--mapping", "examples/simulate/envoy.yaml"}, 2, "", "no line of the log is a request: 0 lines"},
		{[]string{"--rules", "examples/simulate/rules", "--log", "examples/simulate/access.log", "--mapping", in("absent.yaml")}, 2, "", "absent.yaml:3:32: no line of the log has a field \"RESPONSE_FLAGS\""},
		{[]string{"--rules", "examples/simulate/rules", "--log", "examples/simulate/access.log", "--mapping", in("bad.yaml")}, 2, "", "bad.yaml:1:9: unknown `format` \"envoi\": did you mean `envoy`?"},
		{[]string{"--rules", "examples/simulate/rules", "--log", in("other.log"), "--mapping", in("text.yaml")}, 2, "", "text.yaml:5:32: the pattern has no operator \"user\": did you mean `usr`?"},
		{[]string{"--rules", "examples/simulate/rules", "--log", in("gone.log"), "--mapping", in("nginx.yaml")}, 2, "", "read log: stat "},
		{[]string{"--rules", "examples/simulate/rules", "--log", dir, "--mapping", in("nginx.yaml")}, 2, "", "is a directory"},
		{[]string{"--rules", "examples/simulate/rules", "--log", "examples/simulate/access.log"}, 2, "", "use --format and --descriptor, such as --format nginx --descriptor remote_address=ip, or --mapping FILE"},
		{[]string{"--rules", "examples/simulate/rules"}, 2, "", "missing flags: --log=FILE"},
	} {
		code, stdout, stderr := simulateRules(t, c.args...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.code == 0 && stderr != "" {
			t.Errorf("ratelimitd simulate %q exits with %d, want %d\nstdout (want %q)\n%s\nstderr (want %q)\n%s", c.args, code, c.code, c.stdout, stdout, c.stderr, stderr)
		}
	}
}

// Reports go to files, or to standard output in several formats.
func TestSimulateCommandWrites(t *testing.T) {
	racetest.Sequential(t)
	t.Chdir("../..")
	dir := t.TempDir()
	verdicts := filepath.Join(dir, "v.json")
	code, stdout, stderr := simulateRules(t, "--rules", "examples/simulate/stricter", "--against", "examples/simulate/rules", "--log", "examples/simulate/access.log",
		"--mapping", "examples/simulate/envoy.yaml", "--output", "json", "--verdicts", verdicts)
	var report struct {
		Requests    int
		NewlyDenied struct{ Requests, Customers int } `json:"newly_denied"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); code != 0 || err != nil || report.Requests != 984 || report.NewlyDenied.Requests != 277 || report.NewlyDenied.Customers != 3 {
		t.Errorf("exit code %d, %v\n%s\n%.2000s", code, err, stderr, stdout)
	}
	f, err := os.Open(verdicts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	type verdict struct {
		Log, Time, Customer, Code, Rule, Old string
		Line                                 int
	}
	var all []verdict
	for d := json.NewDecoder(f); ; {
		var v verdict
		if err := d.Decode(&v); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	newly := 0
	for _, v := range all {
		if v.Code == "OVER_LIMIT" && v.Old == "OK" {
			newly++
		}
	}
	want := verdict{"examples/simulate/access.log", "2026-03-02T09:00:18.297Z", "203.0.113.20", "OK", "", "OK", 2}
	if len(all) != 984 || newly != 277 || all[0].Code != want.Code || all[0].Log != want.Log || all[0].Line == 0 || all[0].Customer == "" {
		t.Errorf("%d verdicts, %d newly denied, the first %+v", len(all), newly, all[0])
	}
}

// Flags describe a usual log, so that it needs no mapping.
func TestSimulateWithoutMapping(t *testing.T) {
	racetest.Sequential(t)
	t.Chdir("../..")
	dir := writeRules(t, map[string]string{
		"nginx.log":  `192.0.2.7 - - [01/Mar/2026:12:00:00 +0000] "GET /a?b HTTP/1.1" 200 5 "-" "curl/8"` + "\n",
		"own.log":    "1772366400.5 192.0.2.7 ada\n",
		"json.log":   `{"at": 1772366400500, "user": "ada", "method": "GET"}` + "\n",
		"rules.yaml": "domain: d\ndescriptors:\n- {key: remote_address, value: 192.0.2.7, rate_limit: &none {unit: day, requests_per_unit: 0}}\n- {key: user, value: ada, rate_limit: *none}\n- {key: agent, value: curl/8, rate_limit: *none}\n- {key: method, value: GET, descriptors: [{key: path, value: /a, rate_limit: *none}, {key: all, value: 'x,y', rate_limit: *none}]}\n",
	})
	in := func(name string) string { return filepath.Join(dir, name) }
	rules := in("rules.yaml")
	for _, c := range []struct {
		rules, log string
		flags      []string
		want       string // text that the output or the error must contain
	}{
		{rules, "nginx.log", []string{"--format", "nginx", "--descriptor", "remote_address=ip"}, "denied: 1 of 1 requests"},
		{rules, "nginx.log", []string{"--format", "apache", "--descriptor", "remote_address=ip"}, "denied: 1 of 1 requests"},
		{rules, "nginx.log", []string{"--format", "nginx", "--descriptor", "remote_address=remote_user", "--descriptor", "method=method,path=path"}, "denied: 1 of 1 requests"},
		{rules, "nginx.log", []string{"--format", "nginx", "--descriptor", "agent=header:user-agent"}, "denied: 1 of 1 requests"},
		{rules, "nginx.log", []string{"--format", "nginx", "--descriptor", `method=method,all=value:x\,y`}, "denied: 1 of 1 requests"},
		{rules, "nginx.log", []string{"--format", "nginx", "--descriptor", "remote_address=ip", "--domain", "other"}, "match no request at all"},
		{rules, "own.log", []string{"--format", "nginx", "--pattern", "$msec $remote_addr $user", "--descriptor", "user=user"}, "denied: 1 of 1 requests"},
		{rules, "json.log", []string{"--format", "json", "--time", "at=unix_ms", "--descriptor", "user=user"}, "denied: 1 of 1 requests"},
		{rules, "json.log", []string{"--format", "json", "--time", "at=unix_ms", "--descriptor", "method=method,all=value:"}, "--descriptor method=method,all=value:: `value` is empty"},
		{"examples/simulate/rules", "examples/simulate/access.log", []string{"--format", "envoy", "--descriptor", "remote_address=ip", "--descriptor", "method=method,path=path,remote_address=ip"}, "denied: 48 of 984 requests"},

		{rules, "json.log", []string{"--format", "json", "--descriptor", "user=user"}, "--format json: no `time`"},
		{rules, "json.log", []string{"--format", "json", "--time", "at=unix_ms", "--descriptor", "user=usr"}, "--descriptor user=usr: no line of the log has a field \"usr\""},
		{rules, "nginx.log", []string{"--format", "nginx", "--descriptor", "user=remote_users"}, "--descriptor user=remote_users: the log_format has no variable \"remote_users\": did you mean `remote_user`?"},
		{rules, "nginx.log", []string{"--format", "nginx", "--descriptor", "user"}, "--descriptor user: \"user\" has no value"},
		{rules, "nginx.log", []string{"--format", "nginx", "--pattern", "$a$b", "--descriptor", "user=b"}, "--pattern: `pattern`: column 3: nothing stands between $a and $b"},
		{rules, "nginx.log", []string{"--format", "nginxx", "--descriptor", "user=b"}, "--format: must be `envoy`, `nginx`, `apache`, `json` or `text`"},
		{"config/domains", "nginx.log", []string{"--format", "nginx", "--descriptor", "user=b"}, " domains: use --domain to name the domain of the requests"},
		{rules, "nginx.log", []string{"--format", "nginx"}, "use --format and --descriptor"},
		{rules, "nginx.log", []string{"--mapping", "examples/simulate/envoy.yaml", "--time", "x"}, "--time is given together with --mapping"},
	} {
		log := c.log
		if filepath.Base(log) == log {
			log = in(log)
		}
		code, stdout, stderr := simulateRules(t, append([]string{"--rules", c.rules, "--log", log, "--fail-on", "denied"}, c.flags...)...)
		if code == 0 || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%q exits with %d\n%s%s\nwant %q", c.flags, code, stdout, stderr, c.want)
		}
	}
}

// A month has 30 days by default. With the service's variable it is a calendar month.
func TestSimulateCalendarMonths(t *testing.T) {
	racetest.Sequential(t)
	rules := writeRules(t, map[string]string{"r.yaml": "domain: d\ndescriptors: [{key: user, rate_limit: {unit: month, requests_per_unit: 1}}]\n"})
	dir := writeRules(t, map[string]string{
		"mapping.yaml": "format: text\npattern: '%at%,%user%'\ntime: at\ndomain: d\ndescriptors: [[{key: user, field: user}]]\n",
		"access.log":   "2026-01-31T23:59:59Z,ada\n2026-02-01T00:00:01Z,ada\n",
	})
	args := []string{"--rules", rules, "--mapping", filepath.Join(dir, "mapping.yaml"), "--log", filepath.Join(dir, "access.log"), "--fail-on", "denied"}
	if code, stdout, stderr := simulateRules(t, args...); code != 1 || !strings.Contains(stderr, "denied: 1 of 2 requests") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	t.Setenv("USE_CALENDAR_MONTH_RATE_LIMIT", "true")
	if code, stdout, stderr := simulateRules(t, args...); code != 0 {
		t.Errorf("with months of the calendar: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// Logs can be compressed, come from standard input, or be split into several files.
func TestSimulateCommandReads(t *testing.T) {
	racetest.Sequential(t)
	t.Chdir("../..")
	log, err := os.ReadFile("examples/simulate/access.log")
	if err != nil {
		t.Fatal(err)
	}
	half := bytes.LastIndexByte(log[:len(log)/2], '\n') + 1
	dir := t.TempDir()
	one, two := filepath.Join(dir, "access.log.1.gz"), filepath.Join(dir, "access.log")
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(log[:half])
	_ = w.Close()
	for name, data := range map[string][]byte{one: packed.Bytes(), two: log[half:]} {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	given := []string{"simulate", "--rules", "examples/simulate/rules", "--mapping", "examples/simulate/envoy.yaml", "--fail-on", "denied"}
	if code, _, stderr := simulateRules(t, append(given[1:], "--log", one, "--log", two)...); code != 1 || !strings.Contains(stderr, "denied: 48 of 984 requests") {
		t.Errorf("in two pieces: exit code %d\n%s", code, stderr)
	}
	cmd := command(t, nil, append(given, "--log", "-")...)
	cmd.Stdin = bytes.NewReader(log)
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "denied: 48 of 984 requests") || !strings.Contains(string(out), "984 requests of standard input") {
		t.Errorf("over standard input: exit code %d\n%s", cmd.ProcessState.ExitCode(), out)
	}
}
