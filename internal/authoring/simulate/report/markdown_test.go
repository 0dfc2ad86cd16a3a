package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate/report"
	"github.com/ratelimitd/ratelimitd/internal/testkit/golden"
)

func markdown(t *testing.T, r *simulate.Report, top int) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.WriteMarkdown(&b, r, report.MarkdownOptions{Top: top}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestMarkdown(t *testing.T) {
	for name, against := range map[string]bool{"one.md": false, "two.md": true} {
		t.Run(name, func(t *testing.T) {
			golden.Compare(t, results+name, markdown(t, example(t, against), 5))
		})
	}
}

// setTexts sets every text in v, at any depth, to the result of text for its place.
func setTexts(v reflect.Value, place string, text func(place string) string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text(place))
	case reflect.Pointer:
		if !v.IsNil() {
			setTexts(v.Elem(), place, text)
		}
	case reflect.Slice:
		for i := range v.Len() {
			setTexts(v.Index(i), fmt.Sprintf("%s[%d]", place, i), text)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Type.PkgPath() != "time" {
				setTexts(v.Field(i), place+"."+f.Name, text)
			}
		}
	}
}

// everything is the example with something in every part.
func everything(t *testing.T) *simulate.Report {
	t.Helper()
	r := example(t, true)
	r.Warnings, r.Unreached = []string{""}, []string{""}
	r.New.Failed, r.New.NotEnforced = 1, 1
	r.ByRule[0].New.Limits = append(r.ByRule[0].New.Limits, simulate.Limit{})
	r.ByRule = append(r.ByRule, simulate.Rule{Line: 1, Old: &simulate.RuleCount{}})
	r.Customers.Rows[0].DeniedBy, r.Customers.Rows[1].OldDeniedBy = []simulate.DeniedBy{{}}, []simulate.DeniedBy{{}}
	r.Customers.Rows[1].DeniedBy = nil
	return r
}

// span matches text that Markdown shows unchanged.
var span = regexp.MustCompile("`[^`\n]+`|<code>[^<`|\n]*</code>")

// All texts of a report are written as code, where they have no meaning: no mention, no link, no HTML, no other
// columns. A comment with ten rows of long texts is still one that GitHub takes.
func TestHostileTextsInMarkdown(t *testing.T) {
	saved, err := json.Marshal(everything(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, hostile := range []string{
		"@everyone", "a | b", "\\| x |", "`", "``` ` ```", "x\n```\n# title", "<b>", "</details>", "[a](https://example.com)", "https://example.com", "\x1b[2J\u202e", "~~~", "&lt;", "$x$", "", " ",
		strings.Repeat("`|<>", 500),
	} {
		for _, against := range []bool{true, false} {
			r := new(simulate.Report)
			if err := json.Unmarshal(saved, r); err != nil {
				t.Fatal(err)
			}
			if !against {
				r.Old = nil
			}
			for len(r.Customers.Rows) < 30 {
				r.Customers.Rows = append(r.Customers.Rows, r.Customers.Rows[0])
			}
			for len(r.ByRule) < 30 {
				r.ByRule = append(r.ByRule, r.ByRule[0])
			}
			const mark = "qzx"
			setTexts(reflect.ValueOf(r).Elem(), "report", func(string) string { return mark + hostile + mark })
			comment := markdown(t, r, 10)
			if len(comment) > 65536 {
				t.Errorf("%.40q: the comment has %d bytes", hostile, len(comment))
			}
			if strings.ContainsAny(comment, "\x1b\u202e") {
				t.Errorf("%.40q: the comment has control characters", hostile)
			}
			rest := span.ReplaceAllString(comment, "CODE")
			if at := strings.Index(rest, mark); at >= 0 {
				t.Errorf("%.40q is not in code: %q", hostile, rest[max(0, at-80):min(len(rest), at+80)])
			}
			columns := 0
			for line := range strings.Lines(rest) {
				n := strings.Count(line, "|")
				if n == 0 {
					columns = 0
				} else if columns == 0 {
					columns = n
				} else if n != columns {
					t.Errorf("%.40q: a row has %d columns, want %d: %s", hostile, n-1, columns-1, line)
				}
			}
		}
	}
}

// The verdict tells whom a change affects and how, for each kind of result.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*simulate.Report)
		want   string
	}{
		{"a change", func(*simulate.Report) {}, "3 customers would be newly denied\n\nThe change denies **277 of 984 requests (28.2%)** that pass today. They come from 3 customers.\n" +
			"Most affected is `198.51.100.7` with 205 of its 505 requests, denied most by `shop.remote_address`, `sustained 300 per hour`.\n" +
			"It lets **16 of 984 requests (1.63%)** pass that are denied today. They come from 2 customers.\n"},
		{"one directory", func(r *simulate.Report) { r.Old = nil }, "3 customers would be denied\n\nThe rules deny **309 of 984 requests (31.4%)** of 3 customers.\n"},
		{"only passed", func(r *simulate.Report) { *r.NewlyDenied = simulate.Change{} }, "2 customers would be denied less often, nobody more often\n\nIt lets **16"},
		{"only denied", func(r *simulate.Report) { *r.NewlyPassed = simulate.Change{} }, "No request that is denied today would pass.\n"},
		{"no change of answers", func(r *simulate.Report) { *r.NewlyDenied, *r.NewlyPassed = simulate.Change{}, simulate.Change{} },
			"nobody would notice\n\nAll 984 requests get the same verdict as before.\n"},
		{"nothing denied", func(r *simulate.Report) { r.Old, r.New.Denied = nil, 0 }, "nobody would be denied\n\nThe rules let all 984 requests pass.\n"},
		{"no rule", func(r *simulate.Report) { r.New.NoRule = r.Requests }, "no request matches a rule\n\nThe rules match none of the 984 requests"},
		{"not active", func(r *simulate.Report) { r.New.NoRule, r.New.Inactive = 4, r.Requests-4 }, "no limit is active\n\nThe rules match 980 of 984 requests (99.6%), and none of their limits is active at the time of such a request"},
		{"too many customers", func(r *simulate.Report) { r.Customers.Exact = false }, "They come from at least 3 customers.\n"},
		{"failures", func(r *simulate.Report) { r.New.Failed, r.New.NotEnforced = 2, 1 },
			"For 2 requests no decision could be made.\n1 request went over a limit and passed, because the limit is not enforced.\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := example(t, true)
			c.change(r)
			if got := markdown(t, r, 5); !strings.Contains(got, c.want) {
				t.Errorf("want %q in\n%s", c.want, got)
			}
		})
	}
}
