package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// The instructions of all expressions of a file are bounded, however the expressions come into the file: repetitions
// make many of a short text. One error gives the position and a fix, and no more expressions are compiled after it.
func TestExpressionsAreBounded(t *testing.T) {
	racetest.Sequential(t)
	rule := func(what string, more ...string) string {
		return "- {key: k, value_regex: '" + what + "', rate_limit: {unit: day, requests_per_unit: 1}" + strings.Join(more, "") + "}\n"
	}
	many := func(n int, of func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(of(i))
		}
		return b.String()
	}
	nested := strings.ReplaceAll(strings.TrimSpace(rule("[a-z]{900}")), "- {", "{")
	for name, text := range map[string]string{
		"repetitions":    many(1000, func(i int) string { return rule(fmt.Sprintf("(x+x+)+y|[a-z]{1,900}%d", i)) }),
		"one expression": rule(strings.Repeat("x{1000}", 140)),
		"behind aliases": "- {key: a, descriptors: &a [" + nested + "]}\n" + many(200, func(i int) string { return fmt.Sprintf("- {key: a%d, descriptors: *a}\n", i) }),
		"inherited":      "- {key: a, descriptors: [" + nested + "]}\n" + many(200, func(i int) string { return fmt.Sprintf("- {key: a, value: v%d, inherit: true}\n", i) }),
		"capture groups": many(1000, func(i int) string { return rule(fmt.Sprintf(".{9}[ac].*(b)%d", i), ", group: $1") }),
	} {
		for _, lenient := range []bool{false, true} {
			r := newRuleReader("f.yaml", lenient)
			docs := r.Parse([]byte("domain: d\ndescriptors:\n" + text))
			r.document(docs[0])
			errs := r.Errors()
			if len(errs) != 1 || !strings.Contains(errs[0].Error(), "f.yaml:") || !strings.Contains(errs[0].Msg, "write smaller repetitions") {
				t.Errorf("%s: %d errors, the first %.1q", name, len(errs), errs)
			}
			if most := maxInstructions(r.Size()); r.compiled > most+150_000 { // the last one may exceed it
				t.Errorf("%s: %d instructions in a file that may have %d", name, r.compiled, most)
			}
		}
	}
	usual := many(400, func(i int) string {
		return rule(fmt.Sprintf("/api/v%d/users/([^/]{1,64})/orders/[0-9]+", i), ", group: $1")
	})
	if _, _, errs := rulesOf(t, "domain: d\ndescriptors:\n"+usual); len(errs) > 0 {
		t.Errorf("usual expressions: %.3q", errs)
	}
}
