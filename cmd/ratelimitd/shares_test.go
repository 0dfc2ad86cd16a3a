package main

import (
	"strings"
	"testing"
)

// The shares of a server can be listed as its counters can. A server whose clients do not decide themselves has none.
func TestSharesCommand(t *testing.T) {
	p := startProcess(t, map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken}, "--rules", rulesOf(t, usageRules))
	token := tokenFile(t, adminToken)
	for _, c := range []struct {
		args   string
		code   int
		stdout string // part of it
		stderr string
	}{
		{"-d api", 0, "no client of this replica uses a quota bucket of this domain\n", ""},
		{"-d api --where tenant=acme --most 1000", 0, "with these entries\n", ""},
		{"-d apo", 0, "no rules are loaded for the domain \"apo\"", ""},
		{"-d api --json", 0, `"buckets": [],`, ""},
		{"-d api --where tenant", 2, "", "--where: \"tenant\" has no value"},
		{"-d api --most 1001", 2, "", "--most: use a number from 1 to 1000"},
		{"-d api --most 0", 2, "", "--most: use a number from 1 to 1000"},
		{"", 2, "", "missing flags: --domain"},
	} {
		code, stdout, stderr := asks(t, append([]string{"shares", "-s", p.Debug, "--token-file", token}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
			t.Errorf("%s: %d\n%s\n%s", c.args, code, stdout, stderr)
		}
	}
	if code, _, stderr := asks(t, "shares", "-s", p.Debug, "-d", "api"); code != 1 || !strings.Contains(stderr, "token") {
		t.Errorf("without a token: %d %s", code, stderr)
	}
}
