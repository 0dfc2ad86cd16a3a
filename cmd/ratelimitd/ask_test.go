package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// asks runs a subcommand in this process and returns its exit code and its output.
func asks(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

const edgeRules = `
domain: edge
headers: [ratelimit, retry-after]
descriptors:
  - key: method
    values: [GET, HEAD]
    descriptors:
      - key: path
        value: /search
        rate_limit: {name: search, unit: year, requests_per_unit: 3}
      - key: path
        value: /s*
        rate_limits:
          - {name: short, unit: year, requests_per_unit: 2}
          - {name: long, unit: year, requests_per_unit: 9, algorithm: sliding_window}
      - key: path
        rate_limit: {unlimited: true}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1000}
  - key: leased
    rate_limit: {unit: year, requests_per_unit: 1000, lease: true}
`

func TestExplainCommand(t *testing.T) {
	rules := rulesOf(t, edgeRules)
	bad := rulesOf(t, edgeRules, "domain: other\ndescriptor: []\n")
	file := filepath.Join(rules, "rules0.yaml")
	for _, c := range []struct {
		args   []string
		code   int
		stdout string // part of it
		stderr string
	}{
		{[]string{"method=GET,path=/search"}, 0, "\nlimit    3 per year, fixed window\nkey      edge|method=GET|path=/search|f31536000\n", ""},
		{[]string{"method=GET,path=/search"}, 0, "rules0.yaml:8:9", ""},
		{[]string{"--at", "2026-03-10T12:00:00Z", "method=GET,path=/search"}, 0, "of the first that is denied\n           Retry-After: 24408000\n", ""},
		{[]string{"--cache-key-prefix", "blue_", "method=GET,path=/sea"}, 0, "key      blue_edge|method=GET|path=/sea|s31536000\n", ""},
		{[]string{"--limit", "50/30s", "method=GET,path=/search"}, 0, "limit    50 per 30 seconds, fixed window\n", ""},
		{[]string{"--shadow-mode", "method=GET,path=/search"}, 0, "denied   never", ""},
		{[]string{"method=GET,path=/"}, 0, "unlimited: everything passes", ""},
		{[]string{"method=GET,path=/search", "nobody=knows"}, 0, "no rule  nothing matches entry 1", ""},
		{[]string{"method=GTE"}, 3, "did you mean method=GET?", ""},
		{[]string{"mehtod=GET"}, 3, "did you mean method?", ""},
		{[]string{"path=/search,method=GET"}, 3, "did you mean the order method, path?", ""},
		{[]string{"--domain", "egde", "method=GET"}, 3, "did you mean edge?", ""},
		{[]string{"--rules", file, "method=GET,path=/search"}, 0, "3 per year", ""},
		{[]string{"--rules", bad, "method=GET,path=/search"}, 0, "3 per year", "rules1.yaml:2:1: unknown key `descriptor`"},
		{[]string{"--rules", filepath.Join(bad, "rules1.yaml"), "method=GET"}, 1, "", "rules1.yaml cannot be used"},
		{[]string{"--rules", t.TempDir(), "method=GET"}, 1, "", "no rule file in"},
		{[]string{"--rules", filepath.Join(bad, "gone"), "method=GET"}, 2, "", "gone"},
		{[]string{"--quota-bucket", "path=/search,method=GET"}, 0, "\nbucket   the pairs are sorted by key; without a rule everything passes\n", ""},
		{[]string{"--quota-bucket", "method=GET,path=/search,method=POST"}, 2, "", "descriptor 1: the key \"method\" twice: the id of a quota bucket has each key once"},
		{[]string{"--quota-bucket", "--limit", "9/day", "method=GET"}, 2, "", "--quota-bucket and --limit"},
		{[]string{"--quota-bucket", "--domain", "egde", "method=GET"}, 3, "did you mean edge?", ""},
		{[]string{"method"}, 2, "", "descriptor 1: \"method\" has no value: write `method=value`"},
		{[]string{"--limit", "many", "method=GET"}, 2, "", "--limit many: write requests per window"},
		{[]string{"--limit", "9/fortnight", "method=GET"}, 2, "", `"fortnight" is not a unit of time`},
		{[]string{"--limit", "9/99999999years", "method=GET"}, 2, "", "more than 90 years"},
		{[]string{}, 2, "", "descriptor"},
		{[]string{"--color", "always", "method=GET,path=/search"}, 0, "\x1b[32m> exact", ""},
	} {
		args := append([]string{"explain", "--domain", "edge", "--rules", rules}, c.args...)
		code, stdout, stderr := asks(t, args...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("%q exits with %d, want %d\nstdout (want %q)\n%s\nstderr (want %q)\n%s", c.args, code, c.code, c.stdout, stdout, c.stderr, stderr)
		}
	}
	code, stdout, _ := asks(t, "explain", "-d", "edge", "--rules", rules, "--json", "method=GET,path=/search")
	var report struct {
		Descriptors []struct {
			Matched bool
			Limits  []struct{ Key, Words string }
		}
		Denies bool
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 || !report.Denies || report.Descriptors[0].Limits[0].Words != "3 per year, fixed window" {
		t.Errorf("%d %v\n%s", code, err, stdout)
	}
}

// The pairs of a quota bucket's ID are matched in the domain's order, regardless of the order in which they are given.
func TestExplainQuotaBucket(t *testing.T) {
	const buckets = "domain: d\nquota_buckets: {order: [user, plan], default: deny}\ndescriptors:\n  - {key: user, descriptors: [{key: plan, rate_limit: {unit: day, requests_per_unit: 5}}]}\n"
	const line = "bucket   the pairs have the order user, plan, then others by key; without a rule everything is denied\n"
	for _, id := range []string{"plan=gold,user=ada", "user=ada,plan=gold"} {
		code, stdout, stderr := asks(t, "explain", "-d", "d", "--rules", rulesOf(t, buckets), "--quota-bucket", id)
		if code != 0 || !strings.Contains(stdout, line) || !strings.Contains(stdout, "d|user=ada|plan=gold|") || stderr != "" {
			t.Errorf("%s: %d\n%s%s", id, code, stdout, stderr)
		}
	}
	if code, _, stderr := asks(t, "explain", "-d", "d", "-s", "localhost:1", "--quota-bucket", "a=b"); code != 2 || !strings.Contains(stderr, "--quota-bucket needs --rules") {
		t.Errorf("%d %s", code, stderr)
	}
}

// A variable of the server's environment has the same effect on explain here.
func TestExplainReadsTheServersEnvironment(t *testing.T) {
	root := t.TempDir()
	write(t, root, "config/rules.yaml", fiveADay)
	for k, v := range map[string]string{"RUNTIME_ROOT": root, "CACHE_KEY_PREFIX": "p:", "LIMIT_RESPONSE_HEADERS_ENABLED": "true", "LIMIT_LIMIT_HEADER": "x-limit", "RATELIMITD_ON_ERROR": "allow"} {
		t.Setenv(k, v)
	}
	code, stdout, stderr := asks(t, "explain", "-d", "d", "k=v")
	for _, want := range []string{"p:d|k=v|f86400", "x-limit: 5", "on_error allow (the server's)"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%d, want %q in\n%s%s", code, want, stdout, stderr)
		}
	}
}

func TestParseRequestLimit(t *testing.T) {
	for text, want := range map[string]limiter.RequestLimit{
		"10/minute": {Requests: 10, Unit: int32(descriptor.Minute), Multiplier: 1},
		"0/30s":     {Requests: 0, Unit: int32(descriptor.Second), Multiplier: 30},
		"7/2weeks":  {Requests: 7, Unit: int32(descriptor.Week), Multiplier: 2},
		"7/2 weeks": {Requests: 7, Unit: int32(descriptor.Week), Multiplier: 2},
		"7/MONTH":   {Requests: 7, Unit: int32(descriptor.Month), Multiplier: 1},
		"1/5m":      {Requests: 1, Unit: int32(descriptor.Minute), Multiplier: 5},
	} {
		if got, err := parseRequestLimit(text); err != nil || *got != want {
			t.Errorf("%s: %+v %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "10/", "/s", "x/s", "-1/s", "4294967296/s", "1/0s", "1/99999999999s", "1/s/s"} {
		if got, err := parseRequestLimit(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func TestCallCommand(t *testing.T) {
	p := startProcess(t, nil, "--rules", rulesOf(t, edgeRules))
	search := "method=GET,path=/search"
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{search}, 0, "\n   OK, 3 per year (search), 2 left, reset in ", ""},
		{[]string{"--hits", "0", search}, 0, "2 left", ""},
		{[]string{"--hits", "2", search}, 0, "0 left", ""},
		{[]string{search}, 4, "OVER_LIMIT", ""},
		{[]string{search}, 4, "\nheaders\n   Retry-After: ", ""},
		{[]string{"--hits=-4", search}, 0, "\n   OK, 3 per year (search), 2 left", ""},
		{[]string{"--limit", "7/hour", search}, 0, "OK, 7 per hour, 6 left", ""},
		{[]string{"nobody=knows", "method=GET,path=/"}, 0, "OK, no limit applies", ""},
		{[]string{"--count", "5", "method=GET,path=/sales"}, 4, "ok       2 (40.0%)\nover     3 (60.0%)\nerrors   0\nlatency  p50 ", ""},
		{[]string{"--count", "3", "--domain", "", "second=x"}, 1, "3 INVALID_ARGUMENT: rate limit domain must not be empty", "3 of 3 requests got no answer"},
		{[]string{"--domain", "", "second=x"}, 1, "", "INVALID_ARGUMENT: rate limit domain must not be empty"},
		{[]string{"--server", p.HTTP, "second=x"}, 1, "", "is a server listening there"},
		{[]string{"--tls", "second=x"}, 1, "", "trust each other's certificates"},
		{[]string{"second"}, 2, "", "has no value"},
		{[]string{"--count", "5000000000", "second=x"}, 2, "", "at most 1000000000"},
		{[]string{"--concurrency", "5", "second=x"}, 2, "", "--concurrency needs --count"},
		{[]string{"--concurrency", "50000", "--count", "1", "second=x"}, 2, "", "at most 10000"},
		{[]string{"--hits", "9999999999999999", "second=x"}, 2, "", "--hits 9999999999999999"},
		{[]string{"--timeout", "0s", "second=x"}, 2, "", "--timeout 0s"},
	} {
		args := append([]string{"call", "--server", p.GRPC, "--domain", "edge"}, c.args...)
		code, stdout, stderr := asks(t, args...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("%q exits with %d, want %d\nstdout (want %q)\n%s\nstderr (want %q)\n%s", c.args, code, c.code, c.stdout, stdout, c.stderr, stderr)
		}
	}
	code, stdout, _ := asks(t, "call", "-s", p.GRPC, "-d", "edge", "--json", "--count", "4", "second=x")
	var sum struct {
		Sent, OK int
		P99      float64 `json:"p99_ms"`
	}
	if err := json.Unmarshal([]byte(stdout), &sum); err != nil || code != 0 || sum.Sent != 4 || sum.OK != 4 || sum.P99 <= 0 {
		t.Errorf("%d %v\n%s", code, err, stdout)
	}
	code, stdout, _ = asks(t, "call", "-s", p.GRPC, "-d", "edge", "-o", "json", search)
	var answer ratelimitv3.RateLimitResponse
	if err := protojson.Unmarshal([]byte(stdout), &answer); err != nil || code != 0 || answer.GetOverallCode() != ratelimitv3.RateLimitResponse_OK || answer.GetStatuses()[0].GetLimitRemaining() != 1 {
		t.Errorf("%d %v\n%s", code, err, stdout)
	}
}

const adminToken = "some-secret-token-0123456789"

// tokenFile writes tokens to a new file.
func tokenFile(t *testing.T, lines ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	writeTokens(t, file, lines...)
	return file
}

func writeTokens(t *testing.T, file string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPeekAndResetCommands(t *testing.T) {
	file := tokenFile(t, "ann "+adminToken)
	p := startProcess(t, map[string]string{"RATELIMITD_ADMIN_TOKEN_FILE": file}, "--rules", rulesOf(t, edgeRules))
	sales := "method=GET,path=/sales"
	if code, _, stderr := asks(t, "call", "-s", p.GRPC, "-d", "edge", "--count", "3", sales); code != 4 {
		t.Fatalf("%d %s", code, stderr)
	}
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"peek", sales}, 0, "limit    2 per year, fixed window (short)\nkey      edge|method=GET|path=/sales|f31536000\nstate    3 of 2 used, 0 left, the next one passes in ", ""},
		{[]string{"peek", sales}, 0, "limit    9 per year, sliding window (long)\nkey      edge|method=GET|path=/sales|s31536000\nstate    2 of 9 used, 7 left", ""},
		{[]string{"reset", sales, "nobody=knows"}, 0, "cleared  3 of 2 had been used\n", ""},
		{[]string{"peek", sales}, 0, "state    0 of 2 used, 2 left", ""},
		{[]string{"peek", "--limit", "5/hour", sales}, 0, "limit    5 per hour, fixed window", ""},
		{[]string{"peek", "method=GET,path=/"}, 0, "unlimited: nothing is counted", ""},
		{[]string{"peek", "nobody=knows"}, 3, "no rule  nothing matches entry 1", ""},
		{[]string{"peek", "method=GTE"}, 3, "did you mean", ""},
		{[]string{"reset", "nobody=knows"}, 3, "no rule", ""},
		{[]string{"peek", "--domain", "", sales}, 1, "", "INVALID_ARGUMENT"},
		{[]string{"peek", "nobody"}, 2, "", "has no value"},
		{[]string{"peek", "--token-file", file + "gone", sales}, 2, "", "gone"},
		{[]string{"peek", "--token-file", tokenFile(t), sales}, 2, "", "there is no token in"},
		{[]string{"peek", "--token-file", tokenFile(t, "another-token-0123456789"), sales}, 1, "", "UNAUTHENTICATED: the token is unknown"},
		{[]string{"reset", "--token-file", "", sales}, 1, "", "UNAUTHENTICATED: a token is required"},
	} {
		args := append([]string{c.args[0], "--server", p.Debug, "--domain", "edge", "--token-file", file}, c.args[1:]...)
		code, stdout, stderr := asks(t, args...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("%q exits with %d, want %d\nstdout (want %q)\n%s\nstderr (want %q)\n%s", c.args, code, c.code, c.stdout, stdout, c.stderr, stderr)
		}
	}
	code, stdout, _ := asks(t, "peek", "-s", p.Debug, "-d", "edge", "--token-file", file, "--json", sales)
	var all []json.RawMessage
	var peeked adminv1.PeekResponse
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || code != 0 || len(all) != 1 || protojson.Unmarshal(all[0], &peeked) != nil || peeked.GetCounters()[1].GetRemaining() != 9 {
		t.Errorf("%d %v\n%s", code, err, stdout)
	}

	// A server explains the rules that it has.
	if code, _, stderr := asks(t, "explain", "-d", "edge", "--rules", rulesOf(t, edgeRules), "--server", p.Debug, sales); code != 2 || !strings.Contains(stderr, "leave out one of them") {
		t.Errorf("two sources of rules: %d %s", code, stderr)
	}
	code, stdout, stderr := asks(t, "explain", "-d", "edge", "--server", p.Debug, "--token-file", file, sales)
	for _, want := range []string{"rule     edge.method_GET,HEAD.path_/s*", "> ", "2 per year", "state    0 of 2 used, 2 left", "rules    from the server " + p.Debug} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("the server's own words, %d, want %q: %s\n%s", code, want, stderr, stdout)
		}
	}
	code, stdout, stderr = asks(t, "explain", "-d", "edge", "--server", p.Debug, "--token-file", file, "--limit", "7/day", sales)
	if code != 0 || !strings.Contains(stdout, "7 per day") || !strings.Contains(stdout, "0 of 7 used") {
		t.Errorf("with a limit of the request: %d %s\n%s", code, stderr, stdout)
	}
	if code, stdout, _ = asks(t, "explain", "-d", "egde", "--server", p.Debug, "--token-file", file, sales); code != 3 || !strings.Contains(stdout, "no rule") {
		t.Errorf("a domain that the server does not know: %d\n%s", code, stdout)
	}
	if code, _, stderr = asks(t, "explain", "-d", "edge", "--server", p.Debug, "--at", "2026-03-10", sales); code != 2 || !strings.Contains(stderr, "--at needs --rules") {
		t.Errorf("at another time: %d %s", code, stderr)
	}

	// Tokens change while the service runs.
	writeTokens(t, file, "bob another-token-0123456789")
	mine := tokenFile(t, adminToken)
	if code, _, stderr := asks(t, "reset", "-s", p.Debug, "-d", "edge", "--token-file", mine, sales); code != 1 || !strings.Contains(stderr, "unknown") {
		t.Errorf("a token that was taken out: %d %s", code, stderr)
	}
	if code, _, stderr := asks(t, "reset", "-s", p.Debug, "-d", "edge", "--token-file", file, sales); code != 0 {
		t.Errorf("a token that came: %d %s", code, stderr)
	}

	// The log records each reset and its token's name. The token itself appears nowhere.
	resets := p.Log.All(t, "reset of counters", 4)
	var seen []string
	for _, line := range resets {
		seen = append(seen, fmt.Sprint(line["token_of"], " ", line["domain"], " ", line["entries"], " ", line["rule"], " ", line["used"], " ", line["result"]))
		if from, _ := line["from"].(string); !strings.HasPrefix(from, "127.0.0.1:") {
			t.Errorf("from %v", line["from"])
		}
	}
	want := []string{
		"ann edge method=GET, path=/sales edge.method_GET,HEAD.path_/s* [3 2] cleared",
		"ann edge nobody=knows <nil> <nil> nothing to clear",
		"ann edge nobody=knows <nil> <nil> nothing to clear",
		"bob edge method=GET, path=/sales edge.method_GET,HEAD.path_/s* [0 0] cleared",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("the log says\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
	}
	if lines := p.Log.All(t, "operator denied", 1); lines[0]["reason"] == "" || lines[0]["method"] == "" {
		t.Errorf("rejected operators are logged as %v", lines)
	}
	everything := p.Log.String()
	for _, page := range []string{"/", "/rlconfig", "/stats", "/debug/pprof/cmdline"} {
		_, body := get(t, "http://"+p.Debug+page)
		everything += body
	}
	if strings.Contains(everything, adminToken) || strings.Contains(everything, "another-token") {
		t.Errorf("a token is in the log or on a page:\n%s", everything)
	}
}

func TestTokensAreShownNowhere(t *testing.T) {
	t.Setenv("RATELIMITD_ADMIN_TOKEN", adminToken)
	for _, args := range [][]string{{"serve", "--help"}, {"peek", "--help"}, {"reset", "--help"}, {"explain", "--help"}, {"serve", "--rules"}, {"peek", "--nonsense"}} {
		code, stdout, stderr := asks(t, args...)
		if strings.Contains(stdout+stderr, adminToken) || len(stdout+stderr) == 0 {
			t.Errorf("%q (%d) shows the token, or nothing:\n%s%s", args, code, stdout, stderr)
		}
	}
	p := startProcess(t, map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken, "DEBUG_HOST": "0.0.0.0", "LOG_LEVEL": "debug"}, "--rules", rulesOf(t, edgeRules))
	_, port, _ := strings.Cut(p.Debug, "]")
	if code, _, stderr := asks(t, "peek", "-s", "127.0.0.1"+port, "-d", "edge", "second=x"); code != 0 {
		t.Errorf("%d %s", code, stderr)
	}
	if lines := p.Log.All(t, "operators' tokens are sent in plain text to an address that is not loopback: set RATELIMITD_ADMIN_TLS_CERT and RATELIMITD_ADMIN_TLS_KEY", 1); len(lines) != 1 {
		t.Errorf("no warning of the plain text:\n%s", p.Log)
	}
	if strings.Contains(p.Log.String(), adminToken) {
		t.Errorf("the token is in the log:\n%s", p.Log)
	}
}

func TestCountersAreOffUnlessSomebodyIsNamed(t *testing.T) {
	p := startProcess(t, nil, "--rules", rulesOf(t, edgeRules))
	for _, what := range []string{"peek", "reset"} {
		code, _, stderr := asks(t, what, "-s", p.Debug, "-d", "edge", "--token", adminToken, "second=x")
		if code != 1 || !strings.Contains(stderr, "PERMISSION_DENIED") || !strings.Contains(stderr, "set RATELIMITD_ADMIN_TOKEN_FILE (--admin-token-file)") {
			t.Errorf("%s: %d %s", what, code, stderr)
		}
	}
}

func TestBadOperatorSettings(t *testing.T) {
	rules := rulesOf(t, edgeRules)
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"a token, no such role": {map[string]string{
			"RATELIMITD_ADMIN_TOKEN_FILE": file(t, "ann oprate "+adminToken+"\n"),
		}, ":1: the second of the three words is no role: write read or operate"},
		"xDS without its key": {map[string]string{
			"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": rules,
		}, "CONFIG_GRPC_XDS_SERVER_USE_TLS, CONFIG_GRPC_XDS_CLIENT_TLS_CERT: load TLS files of xds: the certificate "},
		"a short token":          {map[string]string{"RATELIMITD_ADMIN_TOKEN": "short-secret"}, "a token of fewer than 16 characters"},
		"no file":                {map[string]string{"RATELIMITD_ADMIN_TOKEN_FILE": rules + "/gone"}, "RATELIMITD_ADMIN_TOKEN_FILE): read tokens: open"},
		"an empty file":          {map[string]string{"RATELIMITD_ADMIN_TOKEN_FILE": tokenFile(t)}, "there is no token in"},
		"authorities alone":      {map[string]string{"RATELIMITD_ADMIN_TLS_CLIENT_CA": rules}, "need RATELIMITD_ADMIN_TLS_CERT"},
		"a certificate alone":    {map[string]string{"RATELIMITD_ADMIN_TLS_CERT": rules}, " needs its key: name both files, or neither"},
		"a name, no authorities": {map[string]string{"RATELIMITD_ADMIN_TLS_CLIENT_SAN": "read ann"}, "need RATELIMITD_ADMIN_TLS_CERT"},
		"an unknown role":        {map[string]string{"RATELIMITD_ADMIN_TLS_CLIENT_SAN": "ann,reader bob"}, `RATELIMITD_ADMIN_TLS_CLIENT_SAN: "reader bob" has an unknown role`},
		"an empty name":          {map[string]string{"RATELIMITD_ADMIN_TLS_CLIENT_SAN": "ann,,bob"}, "RATELIMITD_ADMIN_TLS_CLIENT_SAN: an item is empty"},
	} {
		env := map[string]string{"GRPC_PORT": "0", "PORT": "0", "DEBUG_PORT": "0"}
		for k, v := range c.env {
			env[k] = v
		}
		code, text := output(t, env, "--rules", rules)
		if code != 2 || !strings.Contains(text, c.want) || strings.Contains(text, "short-secret") {
			t.Errorf("%s: %d, want %q in\n%s", name, code, c.want, text)
		}
	}
}

// TLS and mTLS on both ports, using the client's flags.
func TestAskOverTLS(t *testing.T) {
	ca, clients := tlstest.NewAuthority(t, "ca"), tlstest.NewAuthority(t, "clients")
	pair, ann, bob, cy, eve := ca.Issue(t, "rl.test"), clients.Issue(t, "ann"), clients.Issue(t, "bob"), clients.Issue(t, "cy"), ca.Issue(t, "eve")
	v := tlstest.NewVolume(t, map[string][]byte{
		"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": ca.PEM, "clients.crt": clients.PEM,
		"ann.crt": ann.Cert, "ann.key": ann.Key, "bob.crt": bob.Cert, "bob.key": bob.Key, "cy.crt": cy.Cert, "cy.key": cy.Key, "eve.crt": eve.Cert, "eve.key": eve.Key,
	})
	p := startProcess(t, map[string]string{
		"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": v.Path("tls.crt"), "GRPC_SERVER_TLS_KEY": v.Path("tls.key"), "GRPC_CLIENT_TLS_CACERT": v.Path("clients.crt"),
		"RATELIMITD_ADMIN_TLS_CERT": v.Path("tls.crt"), "RATELIMITD_ADMIN_TLS_KEY": v.Path("tls.key"), "RATELIMITD_ADMIN_TLS_CLIENT_CA": v.Path("clients.crt"),
		"RATELIMITD_ADMIN_TLS_CLIENT_SAN": "ann, read bob",
	}, "--rules", rulesOf(t, edgeRules))
	trust := []string{"--ca", v.Path("ca.crt"), "--server-name", "rl.test"}
	as := func(who string) []string {
		return append([]string{"--cert", v.Path(who + ".crt"), "--key", v.Path(who + ".key")}, trust...)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"call":                     {append([]string{"call", "-s", p.GRPC}, as("ann")...), 0, "OK"},
		"call, no certificate":     {append([]string{"call", "-s", p.GRPC}, trust...), 1, "UNAVAILABLE"},
		"call, another authority":  {append([]string{"call", "-s", p.GRPC}, as("eve")...), 1, "UNAVAILABLE"},
		"call, no trust":           {[]string{"call", "-s", p.GRPC, "--tls"}, 1, "certificate"},
		"call, plain text":         {[]string{"call", "-s", p.GRPC}, 1, "UNAVAILABLE"},
		"call, another name":       {[]string{"call", "-s", p.GRPC, "--ca", v.Path("ca.crt"), "--server-name", "other.test"}, 1, "other.test"},
		"reset":                    {append([]string{"reset", "-s", p.Debug}, as("ann")...), 0, "cleared"},
		"reset, no certificate":    {append([]string{"reset", "-s", p.Debug}, trust...), 1, "UNAVAILABLE"},
		"reset, another authority": {append([]string{"reset", "-s", p.Debug}, as("eve")...), 1, "UNAVAILABLE"},
		"reset, only reads":        {append([]string{"reset", "-s", p.Debug}, as("bob")...), 1, "this needs the role operate"},
		"peek, only reads":         {append([]string{"peek", "-s", p.Debug}, as("bob")...), 0, "state"},
		"peek, no listed name":     {append([]string{"peek", "-s", p.Debug}, as("cy")...), 1, "UNAVAILABLE"},
		"reset, plain text":        {[]string{"reset", "-s", p.Debug}, 1, "UNAVAILABLE"},
		"peek":                     {append([]string{"peek", "-s", p.Debug}, as("ann")...), 0, "state"},
	} {
		code, stdout, stderr := asks(t, append(c.args, "-d", "edge", "second=x")...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%s: %d, want %d with %q:\n%s%s", name, code, c.code, c.want, stdout, stderr)
		}
	}
	if lines := p.Log.All(t, "reset of counters", 1); len(lines) != 1 || lines[0]["certificate"] != "CN=ann" {
		t.Errorf("the log says %v", lines)
	}
	if resp, err := http.Get("http://" + p.Debug + "/stats"); err == nil { //nolint:noctx // the test's own server
		if resp.StatusCode == http.StatusOK {
			t.Error("the pages are there in plain text")
		}
		_ = resp.Body.Close()
	}
}

// redisSettings start a Redis, two or a cluster, and return the settings of a process that counts there.
var redisSettings = map[string]func(t *testing.T) map[string]string{
	"single": func(t *testing.T) map[string]string {
		return map[string]string{"REDIS_URL": redistest.Start(t).Addr}
	},
	"pair": func(t *testing.T) map[string]string {
		return map[string]string{"REDIS_URL": redistest.Start(t).Addr, "REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": redistest.Start(t).Addr}
	},
	"cluster": func(t *testing.T) map[string]string {
		return map[string]string{"REDIS_URL": strings.Join(redistest.StartCluster(t, redistest.Setup{}).Addrs(), ","), "REDIS_TYPE": "CLUSTER"}
	},
}

// A request that one Redis or slot denies gives back the hits that it has reserved in another one. Until then these
// hits may have caused the denial of another request, so every replica forgets the denial of that counter.
func TestGivenBackInRedis(t *testing.T) {
	for _, name := range []string{"pair", "cluster"} {
		t.Run(name, func(t *testing.T) {
			settings := redisSettings[name](t)
			settings["REDIS_OP_TIMEOUT"] = "5s"
			settings["LOCAL_CACHE_SIZE_IN_BYTES"] = "1000000"
			rules := rulesOf(t, `
domain: edge
admission: all_or_nothing
descriptors:
  - key: customer
    rate_limits:
      - {name: burst, unit: second, requests_per_unit: 2}
      - {name: total, unit: year, requests_per_unit: 10}
`)
			here, there := startProcess(t, settings, "--rules", rules), startProcess(t, settings, "--rules", rules)
			before := receivedBy(t, there)
			until(t, "the other replica learns of it", func() bool {
				if code, stdout, stderr := asks(t, "call", "-s", here.GRPC, "-d", "edge", "customer=ann", "--hits", "10"); code != 4 {
					t.Fatalf("10 of 2: %d\n%s%s", code, stdout, stderr)
				}
				return receivedBy(t, there) > before
			})
		})
	}
}

// A reset clears counters in Redis and this process's caches of them. Afterwards the full limit applies again: with a
// denial cache, with leases, on one Redis, on a pair and on a cluster. The other process also drops its denials and the
// permits that it has leased.
func TestResetInRedis(t *testing.T) {
	for name, env := range redisSettings {
		t.Run(name, func(t *testing.T) {
			settings := env(t)
			settings["REDIS_OP_TIMEOUT"] = "5s"
			settings["LOCAL_CACHE_SIZE_IN_BYTES"] = "1000000"
			settings["RATELIMITD_ADMIN_TOKEN"] = adminToken
			rules := rulesOf(t, edgeRules)
			here, there := startProcess(t, settings, "--rules", rules), startProcess(t, settings, "--rules", rules)
			for _, p := range []*servicetest.Process{here, there} {
				until(t, "it learns of the other's resets", func() bool { return counted(t, p, "ratelimitd_invalidations_connected") == 1 })
			}
			t.Setenv("RATELIMITD_ADMIN_TOKEN", adminToken)
			must := func(want int, args ...string) string {
				t.Helper()
				code, stdout, stderr := asks(t, append(args, "-d", "edge")...)
				if code != want {
					t.Fatalf("%q: %d, want %d\n%s%s", args, code, want, stdout, stderr)
				}
				return stdout
			}
			sales := "method=GET,path=/sales" // two limits, whose keys are in different slots
			if out := must(4, "call", "-s", here.GRPC, sales, "--count", "5"); !strings.Contains(out, "ok       2 ") {
				t.Errorf("before:\n%s", out)
			}
			must(4, "call", "-s", there.GRPC, sales)
			must(0, "reset", "-s", here.Debug, sales)
			if out := must(0, "peek", "-s", here.Debug, sales); strings.Count(out, "state    0 of ") != 2 {
				t.Errorf("after the reset:\n%s", out)
			}
			if out := must(4, "call", "-s", here.GRPC, sales, "--count", "5"); !strings.Contains(out, "ok       2 ") {
				t.Errorf("after the reset, here:\n%s", out)
			}
			must(4, "call", "-s", there.GRPC, sales)
			clears := func(p, other *servicetest.Process, descriptor string) {
				t.Helper()
				// On a cluster the calls above gave hits back, and the other process receives that too.
				until(t, "the other process has all messages", func() bool { return receivedBy(t, other) == sentBy(t, p) })
				before := receivedBy(t, other)
				must(0, "reset", "-s", p.Debug, descriptor)
				began := time.Now()
				until(t, "the other process learns of the reset", func() bool { return receivedBy(t, other) > before && receivedBy(t, other) == sentBy(t, p) })
				t.Logf("the other process learned of the reset after %s", time.Since(began))
			}
			clears(there, here, sales) // the denial is cached here
			if out := must(4, "call", "-s", here.GRPC, sales, "--count", "5"); !strings.Contains(out, "ok       2 ") {
				t.Errorf("after a reset there, here:\n%s", out)
			}

			// The reset voids leased permits that were counted before it: exactly the limit passes afterwards. With the race
			// detector calls are so slow that a reply of Redis may be lost, and the permits with it. At most a twentieth of the
			// limit is leased at a time.
			theLimit := regexp.MustCompile(`ok +1000 `)
			if racetest.On {
				theLimit = regexp.MustCompile(`ok +(9[5-9]\d|1000) `)
			}
			must(0, "call", "-s", here.GRPC, "leased=x", "--count", "500", "--concurrency", "8")
			// On a busy machine a reply may be lost, and the permits with it: 500 or a little more.
			if out := must(0, "reset", "-s", here.Debug, "leased=x"); !regexp.MustCompile(`[5-9]\d\d of 1000 had been used`).MatchString(out) {
				t.Errorf("what was used before:\n%s", out)
			}
			if out := must(4, "call", "-s", here.GRPC, "leased=x", "--count", "1100", "--concurrency", "8"); !theLimit.MatchString(out) {
				t.Errorf("after the reset of a leased limit:\n%s", out)
			}
			// So does the reset of another process.
			must(0, "reset", "-s", here.Debug, "leased=x")
			must(0, "call", "-s", here.GRPC, "leased=x", "--count", "500", "--concurrency", "8")
			clears(there, here, "leased=x")
			if out := must(4, "call", "-s", here.GRPC, "leased=x", "--count", "1100", "--concurrency", "8"); !theLimit.MatchString(out) {
				t.Errorf("after the reset of a leased limit there:\n%s", out)
			}
			if _, body := get(t, "http://"+here.HTTP+"/metrics"); !leasedPermits(body) {
				t.Error("nothing was leased: the test shows nothing of it")
			}

			must(0, "call", "-s", here.GRPC, "second=x")
			must(0, "reset", "-s", here.Debug, "second=x")
		})
	}
}

// receivedBy returns how many messages a process has received about resets and refunds of others.
func receivedBy(t *testing.T, p *servicetest.Process) int {
	t.Helper()
	return counted(t, p, `ratelimitd_invalidations_total{event="received"}`)
}

// sentBy returns how many of these messages a process has sent.
func sentBy(t *testing.T, p *servicetest.Process) int {
	t.Helper()
	return counted(t, p, `ratelimitd_invalidations_total{event="sent"}`)
}

func counted(t *testing.T, p *servicetest.Process, name string) int {
	t.Helper()
	lines := shown(t, "http://"+p.HTTP+"/metrics", name)
	if len(lines) != 1 {
		t.Fatalf("%q", lines)
	}
	_, text, _ := strings.Cut(lines[0], " ")
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A refund of an exhausted counter makes the other processes forget its denial. Exactly the refunded hits pass there.
func TestRefundReachesOtherProcesses(t *testing.T) {
	settings := map[string]string{"REDIS_URL": redistest.Start(t).Addr, "REDIS_OP_TIMEOUT": "5s", "LOCAL_CACHE_SIZE_IN_BYTES": "1000000"}
	rules := rulesOf(t, "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: 10, algorithm: token_bucket}\n")
	here, there := startProcess(t, settings, "--rules", rules), startProcess(t, settings, "--rules", rules)
	admitted := func(p *servicetest.Process, calls int) (n int) {
		t.Helper()
		client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
		for range calls {
			answer, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v"))
			if err != nil {
				t.Fatal(err)
			}
			if answer.OverallCode == ratelimitv3.RateLimitResponse_OK {
				n++
			}
		}
		return n
	}
	if n := admitted(here, 12); n != 10 {
		t.Fatalf("%d admitted, want 10", n)
	}
	if n := admitted(there, 3); n != 0 { // both remember the denial
		t.Fatalf("%d admitted there, want none", n)
	}
	refund := ask("d", "k", "v")
	refund.Descriptors[0].HitsAddend, refund.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(4), true
	if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, here.GRPC)).ShouldRateLimit(t.Context(), refund); err != nil {
		t.Fatal(err)
	}
	until(t, "the other process learns of the refund", func() bool { return receivedBy(t, there) == 1 })
	if n := admitted(there, 6); n != 4 {
		t.Errorf("%d admitted there after 4 were given back here, want 4", n)
	}
}

// leasedPermits reports whether any permits were leased.
func leasedPermits(metrics string) bool {
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, "ratelimitd_lease") && strings.Contains(name, "_total") && value != "0" {
			return true
		}
	}
	return false
}

// If Redis does not answer, the reset returns an error within a bounded time and logs one line.
func TestResetWithoutRedis(t *testing.T) {
	redis := redistest.Start(t)
	p := startProcess(t, map[string]string{"REDIS_URL": redis.Addr, "RATELIMITD_ADMIN_TOKEN": adminToken}, "--rules", rulesOf(t, edgeRules))
	redis.Pause(t)
	defer redis.Continue(t)
	began := time.Now()
	code, _, stderr := asks(t, "reset", "-s", p.Debug, "-d", "edge", "--token", adminToken, "second=x")
	if code != 1 || !strings.Contains(stderr, "UNAVAILABLE") || time.Since(began) > patience {
		t.Errorf("%d after %s: %s", code, time.Since(began), stderr)
	}
	if lines := p.Log.All(t, "reset of counters", 1); len(lines) != 1 || !strings.HasPrefix(fmt.Sprint(lines[0]["result"]), "failed") {
		t.Errorf("the log says %v", lines)
	}
}

// A server that denies a call listens: the error does not doubt that.
func TestCallOfAServerWithoutRules(t *testing.T) {
	p := startProcess(t, map[string]string{"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}, "--rules", t.TempDir())
	code, _, stderr := asks(t, "call", "-s", p.GRPC, "-d", "d", "k=v")
	if code != 1 || !strings.Contains(stderr, "UNAVAILABLE: ") || strings.Contains(stderr, "listening") {
		t.Errorf("%d %s", code, stderr)
	}
}
