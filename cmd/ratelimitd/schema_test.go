package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// TestSchema compares the command's output with the schema files that editors use.
func TestSchema(t *testing.T) {
	racetest.Sequential(t)
	for _, args := range [][]string{{"schema"}, {"schema", "rules"}, {"schema", "tests"}, {"schema", "overrides"}} {
		want, err := os.ReadFile("../../docs/schema/" + args[len(args)-1] + ".schema.json")
		if len(args) == 1 {
			want, err = os.ReadFile("../../docs/schema/rules.schema.json")
		}
		if err != nil {
			t.Fatal(err)
		}
		var out, stderr bytes.Buffer
		if code := run(t.Context(), args, &out, &stderr); code != 0 || !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%q: exit code %d, %d bytes on standard output, want %d: %s", args, code, out.Len(), len(want), stderr.String())
		}
	}
	var out, stderr bytes.Buffer
	if code := run(t.Context(), []string{"schema", "rule"}, &out, &stderr); code != 2 || out.Len() > 0 {
		t.Errorf("an unknown schema: exit code %d, wrote %q", code, out.String())
	}
}
