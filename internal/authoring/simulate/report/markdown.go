package report

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// MarkdownOptions are the settings of WriteMarkdown.
type MarkdownOptions struct {
	Top int // rules and customers to show; 0 means 10
}

// WriteMarkdown writes a report as a comment for a pull request, in the Markdown of GitHub and GitLab.
func WriteMarkdown(to io.Writer, r *simulate.Report, o MarkdownOptions) error {
	if o.Top <= 0 {
		o.Top = 10
	}
	w := &markdownWriter{bufio.NewWriter(to), o.Top}
	v := newVerdict(r)
	w.line("### Rate limits: %s\n", lowerFirst(v.title))
	for _, sentence := range v.sentences {
		for _, p := range sentence {
			switch p.kind {
			case strong:
				w.text("**" + p.text + "**")
			case quoted:
				w.text(code(p.text))
			default:
				w.text(p.text)
			}
		}
		w.line("")
	}
	w.line("")
	w.numbers(r)
	w.newlyDenied(r)
	w.newlyPassed(r)
	w.rules(r)
	if r.Old == nil {
		w.customers(r)
	}
	for _, s := range r.Warnings {
		w.line("> **Warning:** %s\n", code(s))
	}
	w.line("%s of %s, %s. Rules of %s%s.%s", counted(r.Requests, "request"), codes(r.Logs), span(r), code(r.Rules),
		compared(r), unused(r))
	return w.Flush()
}

type markdownWriter struct {
	*bufio.Writer
	top int
}

func (w *markdownWriter) text(s string) { _, _ = w.WriteString(s) } // its error is Flush's

func (w *markdownWriter) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// row writes a row of a table.
func (w *markdownWriter) row(cells ...string) { w.line("| %s |", strings.Join(cells, " | ")) }

// head writes the header row of a table. Columns whose title starts with a blank hold numbers.
func (w *markdownWriter) head(titles ...string) {
	rule := make([]string, len(titles))
	for i, t := range titles {
		rule[i] = "---"
		if strings.HasPrefix(t, " ") {
			rule[i] = "--:"
		}
		titles[i] = strings.TrimSpace(t)
	}
	w.row(titles...)
	w.row(rule...)
}

// more writes how many rows of a table are left out.
func (w *markdownWriter) more(left int, what string) {
	if left > 0 {
		w.line("\nand %s", counted(int64(left), "more "+what))
	}
	w.line("")
}

func compared(r *simulate.Report) string {
	if r.Old == nil {
		return ""
	}
	return ", compared with " + code(r.Against)
}

// unused names the lines of the log that were not replayed.
func unused(r *simulate.Report) string {
	text := ""
	if r.Skipped > 0 {
		text += " " + counted(r.Skipped, "line") + " skipped by the mapping."
	}
	if r.Bad > 0 {
		text += " " + counted(r.Bad, "line") + " of the log cannot be used."
	}
	return text
}

func (w *markdownWriter) numbers(r *simulate.Report) {
	count := func(n int64) string { return number(n) + " (" + percent(n, r.Requests) + ")" }
	rows := []struct {
		title string
		of    func(*simulate.Side) int64
	}{
		{"denied", func(s *simulate.Side) int64 { return s.Denied }},
		{"allowed", func(s *simulate.Side) int64 { return s.Allowed }},
		{"over a limit, not enforced", func(s *simulate.Side) int64 { return s.NotEnforced }},
		{"without a rule", func(s *simulate.Side) int64 { return s.NoRule + s.UnknownDomain }},
		{"no limit active", func(s *simulate.Side) int64 { return s.Inactive }},
		{"without a decision", func(s *simulate.Side) int64 { return s.Failed }},
	}
	if r.Old == nil {
		w.head("requests", " now")
	} else {
		w.head("requests", " before", " now")
	}
	for i, row := range rows {
		now := row.of(&r.New)
		if i >= 2 && now == 0 && (r.Old == nil || row.of(r.Old) == 0) {
			continue
		}
		if r.Old == nil {
			w.row(row.title, count(now))
		} else {
			w.row(row.title, count(row.of(r.Old)), count(now))
		}
	}
	w.line("")
}

func (w *markdownWriter) newlyDenied(r *simulate.Report) {
	if r.Old == nil || r.NewlyDenied.Requests == 0 {
		return
	}
	w.line("#### Newly denied customers\n")
	w.head("customer", "rule", "limit", " newly denied", " requests", " share denied", " share before")
	w.eachCustomer(r, func(c *simulate.Customer) (int64, []simulate.DeniedBy) { return c.NewlyDenied, c.NewlyDeniedBy })
}

func (w *markdownWriter) newlyPassed(r *simulate.Report) {
	if r.Old == nil || r.NewlyPassed.Requests == 0 {
		return
	}
	w.line("#### Newly passed customers\n")
	w.head("customer", "rule before", "limit before", " newly passed", " requests", " share denied", " share before")
	w.eachCustomer(r, func(c *simulate.Customer) (int64, []simulate.DeniedBy) { return c.NewlyPassed, c.OldDeniedBy })
}

// eachCustomer writes a row for each customer with a count, and the limit that denied it most.
func (w *markdownWriter) eachCustomer(r *simulate.Report,
	counted func(*simulate.Customer) (int64, []simulate.DeniedBy)) {
	n := 0
	for i := range r.Customers.Rows {
		c := &r.Customers.Rows[i]
		requests, by := counted(c)
		if requests == 0 {
			continue
		}
		if n++; n > w.top {
			continue
		}
		rule, limit := first(by)
		cells := []string{code(c.Customer), rule, limit, number(requests), number(c.Requests), percent(c.Denied, c.Requests)}
		if r.Old != nil {
			cells = append(cells, percent(c.OldDenied, c.Requests))
		}
		w.row(cells...)
	}
	w.more(n-w.top, "customer")
}

func (w *markdownWriter) rules(r *simulate.Report) {
	w.line("<details><summary>All rules that requests reached</summary>\n")
	titles := []string{"rule", "limits", " requests", " denied", " share denied"}
	if r.Old != nil {
		titles = append(titles, " denied before", " newly denied", " newly passed")
	}
	w.head(titles...)
	for i := range r.ByRule[:min(w.top, len(r.ByRule))] {
		rule := &r.ByRule[i]
		now := rule.New
		name := code(rule.Rule)
		if now == nil {
			now, name = &simulate.RuleCount{}, name+" (gone)"
		}
		limits := make([]string, len(now.Limits))
		for i, l := range now.Limits {
			limits[i] = code(rate(l.Name, l.Limit, l.Burst))
		}
		cells := []string{name, strings.Join(limits, "<br>"), number(now.Requests), number(now.Denied),
			percent(now.Denied, now.Requests)}
		if r.Old != nil {
			old := int64(0)
			if rule.Old != nil {
				old = rule.Old.Denied
			}
			cells = append(cells, number(old), number(rule.NewlyDenied), number(rule.NewlyPassed))
		}
		w.row(cells...)
	}
	w.more(len(r.ByRule)-w.top, "rule")
	if n := len(r.Unreached); n > 0 {
		names := make([]string, min(n, w.top))
		for i := range names {
			names[i] = r.Unreached[i]
		}
		w.line("%s reached by no request: %s%s\n", counted(int64(n), "rule"), codes(names),
			strings.Repeat(", ...", min(1, n-len(names))))
	}
	w.line("</details>\n")
}

func (w *markdownWriter) customers(r *simulate.Report) {
	if r.New.Denied == 0 {
		return
	}
	w.line("#### Denied customers\n")
	w.head("customer", "rule", "limit", " denied", " requests", " share denied")
	w.eachCustomer(r, func(c *simulate.Customer) (int64, []simulate.DeniedBy) { return c.Denied, c.DeniedBy })
}

// first writes the rule and the limit that denied most.
func first(by []simulate.DeniedBy) (rule, limit string) {
	if len(by) == 0 {
		return "", ""
	}
	return code(by[0].Rule), code(rate(by[0].Name, by[0].Limit, by[0].Burst))
}

// maxShown is how many characters of a text are shown in Markdown: comments on GitHub have at most 65,536 in all.
const maxShown = 80

// code writes a text that comes from a log or a rule file as code, in which nothing has a meaning: no mention, link,
// HTML or column. A text with a backtick or a vertical bar cannot be put between backticks in a table, so it is written
// with character references, which never have a meaning either.
func code(s string) string {
	s = clip(terminal.Clean(s), maxShown)
	if strings.TrimSpace(s) == "" {
		return ""
	}
	if !strings.ContainsAny(s, "`|") {
		return "`" + s + "`"
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPunct(r) || unicode.IsSymbol(r) {
			b.WriteString("&#" + strconv.Itoa(int(r)) + ";")
			continue
		}
		b.WriteRune(r)
	}
	return "<code>" + b.String() + "</code>"
}

func codes(all []string) string {
	written := make([]string, len(all))
	for i, s := range all {
		written[i] = code(s)
	}
	return strings.Join(written, ", ")
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }
