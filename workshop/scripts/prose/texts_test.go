package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTextsKeepTheirLines(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"a.go", "package a\n\nimport \"errors\"\n\ntype o struct {\n\tA int `env:\"A\" help:\"The first of all letters.\"`\n}\n\n" +
			"var e = errors.New(\"this one is \" + \"in two parts\")\n\nvar q = `SELECT a FROM\nb WHERE c`\n\nvar short = \"three small words\"\n",
			"\n\n\n\n\n- The first of all letters.\n\n\n- this one is in two parts\n"},
		{"b.go", "package b\n\nfunc f(log func(...any)) { log(\"the %d of these are %q\", 1) }\n", "\n\n- the X of these are X\n"},
		{"deploy/prometheus/alerts.yml", "groups:\n- rules:\n  - alert: A\n    annotations:\n      summary: \"{{ $value }} did not answer\"\n", "\n\n\n\n- {{ $value }} did not answer\n"},
		{"deploy/grafana/dashboards/d.json", "{\n  \"title\": \"Decisions per second\",\n  \"x\": 1\n}\n", "\n- Decisions per second\n"},
		{"c_test.go", "package c\n\nvar s = \"a test writes what it likes\"\n", "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.MkdirAll(filepath.Dir(c.name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(c.name, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			texts, err := textsOf(c.name)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(asList(texts)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
