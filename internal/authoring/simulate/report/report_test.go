package report_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate/report"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/golden"
)

const results = "internal/authoring/simulate/report/testdata/" // path from the top directory, where the example is

// example runs the example of the documentation.
func example(t *testing.T, against bool) *simulate.Report {
	t.Helper()
	t.Chdir("../../../..")
	m, errs := accesslog.LoadMapping("examples/simulate/envoy.yaml")
	for _, e := range errs {
		t.Fatal(e)
	}
	const log = "examples/simulate/access.log"
	o := simulate.Options{
		Rules: directory(t, "examples/simulate/stricter"), Mapping: m, Window: 5 * time.Second, MaxBadLines: 10,
		Logs: []simulate.Log{{Name: log, Open: func() (io.ReadCloser, error) { return os.Open(log) }}},
	}
	if against {
		old := directory(t, "examples/simulate/rules")
		o.Against = &old
	}
	r, err := simulate.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r.Seconds, r.PerSec = 0.25, float64(r.Requests)/0.25
	return r
}

func directory(t *testing.T, dir string) simulate.Rules {
	t.Helper()
	tree, err := simulate.LoadRules(dir, false, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return simulate.Rules{Directory: dir, Tree: tree}
}

func TestText(t *testing.T) {
	for name, against := range map[string]bool{"one.txt": false, "two.txt": true} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := report.WriteText(&b, example(t, against), report.TextOptions{Top: 5}); err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, results+name, b.String())
		})
	}
}

// Colours are added to the text and change nothing else.
func TestTextColors(t *testing.T) {
	r := example(t, true)
	var plain, colored bytes.Buffer
	if err := report.WriteText(&plain, r, report.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := report.WriteText(&colored, r, report.TextOptions{Color: true}); err != nil {
		t.Fatal(err)
	}
	text := colored.String()
	if !strings.Contains(text, "\x1b[31mnewly denied: 277 requests of 3 customers\x1b[0m") {
		t.Errorf("no red line in\n%s", text)
	}
	for _, color := range []string{"0", "1", "2", "31", "32", "33"} {
		text = strings.ReplaceAll(text, "\x1b["+color+"m", "")
	}
	if diff := cmp.Diff(plain.String(), text); diff != "" {
		t.Error(diff)
	}
}

// hostile is a report with names that try to be something else.
func hostile(t *testing.T) *simulate.Report {
	t.Helper()
	r := example(t, true)
	r.Customers.Rows[0].Customer = `</script><script>document.title="broken"</script>`
	r.Customers.Rows[1].Customer = `<img src=x onerror='document.title="broken"'>` + "\x1b[2J\u202e"
	r.ByRule[0].Rule = `shop.</script><img src=https://example.com/x>_"'&`
	r.ByRule[1].Rule = "<!--<script>"
	r.FirstBad[0].Message = "</ul><h1>broken</h1>\n\x1b[31m"
	r.Warnings = append(r.Warnings, "<b>bold</b>")
	return r
}

// Text from a log cannot move the cursor.
func TestTextIsSafeForTerminals(t *testing.T) {
	var b bytes.Buffer
	if err := report.WriteText(&b, hostile(t), report.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b\u202e") || strings.Contains(b.String(), "</h1>\n") {
		t.Errorf("%q", b.String())
	}
}

func TestJSON(t *testing.T) {
	r := example(t, true)
	var b bytes.Buffer
	if err := report.WriteJSON(&b, r); err != nil {
		t.Fatal(err)
	}
	var back simulate.Report
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	if err := d.Decode(&back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &back); diff != "" {
		t.Error(diff)
	}
}

// The documentation shows the command's actual output.
func TestDocumentedText(t *testing.T) {
	var b bytes.Buffer
	if err := report.WriteText(&b, example(t, true), report.TextOptions{Top: 3}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("docs/do/simulating.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := b.String()[:strings.LastIndex(b.String(), "\n\n")]
	if !strings.Contains(string(text), "```\n"+shown+"\n```") {
		t.Errorf("docs/do/simulating.md does not show this:\n%s", shown)
	}
}
