package main

import (
	"strings"
	"testing"
)

// The error for a misspelled word names the right one.
func TestWordsOfTheCommandLine(t *testing.T) {
	rules := rulesOf(t, edgeRules)
	write(t, rules, "rules0_test.yaml", passingTest)
	for _, c := range []struct {
		args   string
		code   int
		stdout string // part of it
		stderr string
	}{
		{"chek rules", 2, "", `unknown command "chek": did you mean check?`},
		{"simulte --rules x", 2, "", `unknown command "simulte": did you mean simulate?`},
		{"frobnicate", 2, "", `unknown command "frobnicate": use one of serve, healthcheck, version, check, `},
		{"rules", 2, "", `unknown command "rules"`},
		{"--maxClientBytes 5", 2, "", "unknown flag --maxClientBytes: did you mean --max-client-bytes?"},
		{"serve --max_client_bytes=5", 2, "", "unknown flag --max_client_bytes: did you mean --max-client-bytes?"},
		{"check --strickt rules", 2, "", "unknown flag --strickt: did you mean --strict?"},
		{"simulate --max-customer --rules x", 2, "", "unknown flag --max-customer: did you mean --max-customers?"},
		{"check -- --strickt", 2, "", "--strickt"},
		{"help", 0, "Usage: ratelimitd [COMMAND] [FLAGS]\n", ""},
		{"help test", 0, "Run only cases whose", ""},
		{"help help", 0, "Usage: ratelimitd [COMMAND] [FLAGS]\n", ""},
		{"--version", 0, "go1.", ""},
		{"--version -o json", 0, `"go": "go1.`, ""},
		{"check -o", 2, "", "--output: needs a value"},
		{"serve --port", 2, "", "--port: needs a value"},
		{"check " + rules + "/rules0_test.yaml", 2, "", "rules0_test.yaml is a test file: ratelimitd test runs it"},
		{"check --disable nothing " + rules, 2, "", `unknown code "nothing": there are never-matches, not-inherited, `},
		{"explain -d edge a=b --limit 10", 2, "", "--limit 10: write requests per window, like 10/minute or 10/30s"},
		{"explain -d edge --rules " + rules + " method=GET,path=/search --limit 10/min", 0, "10 per minute", ""},
		{"explain -d edge --rules " + rules + " method=GET,path=/search --at 2026-03-10", 0, "of the first that is denied\n           Retry-After: 24451200\n", ""},
		{"explain -d edge --rules " + rules + " method=GET,path=/search --at tomorrow", 2, "", "--at tomorrow: write a time like 2026-03-10T12:00:00Z or a date like 2026-03-10"},
		{"call -d edge a=b --server localhost", 2, "", "--server localhost: write host:port, such as localhost:8081, or unix:PATH"},
		{"peek -d edge a=b --server http://localhost:6070", 2, "", "--server http://localhost:6070: write host:port, such as localhost:6070, or unix:PATH"},
	} {
		code, stdout, stderr := asks(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("ratelimitd %s exits with %d, want %d\nstdout (want %q)\n%s\nstderr (want %q)\n%s", c.args, code, c.code, c.stdout, stdout, c.stderr, stderr)
		}
	}
	t.Chdir(t.TempDir())
	for _, command := range []string{"check", "test"} {
		if code, _, stderr := asks(t, command); code != 2 || !strings.Contains(stderr, "there is no config/domains here: name directories or files") {
			t.Errorf("%s where there is nothing: exit code %d\n%s", command, code, stderr)
		}
	}
}
