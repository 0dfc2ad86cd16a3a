package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// The suite passes on this service, and fails on one that enforces nothing. TestConformance replays the recorded cases.
func TestConform(t *testing.T) {
	racetest.Sequential(t)
	const rule = "domain: other\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
	for name, c := range map[string]struct {
		env  map[string]string
		code int
		want []string
	}{
		"in memory": {nil, 0, []string{"protocol  23 of 23 cases passed", "exact     3 of 3 cases passed", "field     7 of 7 cases passed"}},
		"on Redis":  {map[string]string{"REDIS_URL": redistest.Start(t).Addr, "REDIS_OP_TIMEOUT": "10s"}, 0, []string{"protocol  23 of 23 cases passed", "exact     3 of 3 cases passed", "field     7 of 7 cases passed"}},
		"in shadow mode": {map[string]string{"SHADOW_MODE": "true"}, 1, []string{
			"FAILED   protocol/limit-of-zero: A limit of 0 lets nothing pass.\n  request 1: {", "\n  want {", "\n   got {", "    domain: conform-limit-of-zero-", "FAILED   exact/together", "FAILED   field/stricter-limit: Of two limits under one condition, the stricter one holds. https://github.com/",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rules := rulesOf(t, rule)
			p := startProcess(t, c.env, "--rules", rules)
			junit := filepath.Join(t.TempDir(), "report.xml")
			args := []string{"conform", "--target", p.GRPC, "--rules", rules, "--run", "^(protocol|exact|field)/", "--restart", "true", "--junit", junit, "--timeout", "30s"}
			code, text := output(t, nil, args...)
			if code != c.code {
				t.Errorf("exit code %d", code)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("the report does not contain %q:\n%s", want, text)
				}
			}
			raw, err := os.ReadFile(junit)
			if err != nil {
				t.Fatal(err)
			}
			var suite struct {
				Tests    int `xml:"tests,attr"`
				Failures int `xml:"failures,attr"`
			}
			if err := xml.Unmarshal(raw, &suite); err != nil || suite.Tests != 34 || (suite.Failures > 0) != (c.code > 0) {
				t.Errorf("JUnit: %+v, %v", suite, err)
			}
		})
	}

	empty := t.TempDir()
	p := startProcess(t, nil, "--rules", rulesOf(t, rule))
	for want, args := range map[string][]string{
		"there is no setup x: use one of headers, headers-renamed, local-cache": {"--setup", "x"},
		"no case matches the regular expression nothing":                        {"--run", "nothing"},
		"no case matches the regular expression":                                {"--setup", "shadow", "--run", "^exact/"},
		"does not have the rules in " + empty + ": does it read that directory": {"--run", "^protocol/", "--wait", "1ms"},
		"load the rules: exit 3: exit status 3":                                 {"--load", "exit 3", "--run", "^protocol/"},
		"--run: error parsing regexp":                                           {"--run", "("},
	} {
		code, text := output(t, nil, append([]string{"conform", "--target", p.GRPC, "--rules", empty}, args...)...)
		if code == 0 || !strings.Contains(text, want) {
			t.Errorf("%v: exit code %d, want %q:\n%s", args, code, want, text)
		}
	}
}

// Commands stop the store and start it again. The limit holds in between, regardless of how the requests end.
func TestConformStopsTheStore(t *testing.T) {
	racetest.Sequential(t)
	pid := filepath.Join(t.TempDir(), "pid")
	r := redistest.Start(t, "--pidfile", pid)
	rules := t.TempDir()
	p := startProcess(t, map[string]string{"REDIS_URL": r.Addr}, "--rules", rules)
	signal := func(name string) string { return fmt.Sprintf("kill -%s $(cat %s)", name, pid) }
	code, text := output(t, nil, "conform", "--target", p.GRPC, "--rules", rules, "--run", "^field/store-stops$", "--stop-store", signal("STOP"), "--start-store", signal("CONT"))
	if code != 0 || !strings.Contains(text, "field     1 of 1 case passed") {
		t.Errorf("exit code %d:\n%s", code, text)
	}
}

// Rules in limitador's form are one file, behind a link.
func TestConformWritesLimitadorsLimits(t *testing.T) {
	rules := t.TempDir()
	p := startProcess(t, nil, "--rules", rulesOf(t, "domain: other\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n"))
	code, text := output(t, nil, "conform", "--target", p.GRPC, "--rules", rules, "--form", "limitador", "--run", "^field/stricter", "--wait", "1ms")
	got, err := os.ReadFile(filepath.Join(rules, "limits.yaml"))
	if code == 0 || !strings.Contains(text, "does not have the rules") || err != nil {
		t.Fatalf("exit code %d, %v:\n%s", code, err, text)
	}
	const want = "max_value: 30, seconds: 86400, conditions: [\"descriptors[1]['org'] == 'o'\"], variables: [\"descriptors[0]['user']\"]}"
	if !strings.Contains(string(got), want) {
		t.Errorf("limits.yaml does not contain %s:\n%s", want, got)
	}
}
