package explain

import (
	"fmt"
	"io"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// reportWriter writes a report for people.
type reportWriter struct{ *terminal.Writer }

// WriteText writes a report for people.
func WriteText(to io.Writer, r *Report, color bool) error {
	w := reportWriter{terminal.NewWriter(to, color)}
	for i := range r.Descriptors {
		if i > 0 {
			w.Line("")
		}
		w.descriptor(r, &r.Descriptors[i])
	}
	if r.QuotaBucket != nil {
		w.Line("")
		w.bucket(r.QuotaBucket)
	}
	if r.Matched() > 0 && r.Server == "" && r.QuotaBucket == nil { // a client that decides itself gets no headers
		w.Line("")
		w.headers(r)
	}
	if r.RulesFrom != "" {
		w.Line("")
		w.row("rules", "from %s", terminal.Clean(r.RulesFrom))
	}
	return w.Flush()
}

// row writes a line with a heading.
func (w reportWriter) row(what, format string, args ...any) {
	w.Line("%-9s%s", what, fmt.Sprintf(format, args...))
}

func (w reportWriter) descriptor(r *Report, d *Descriptor) {
	w.Line("%s  %s", w.Paint(terminal.Bold, terminal.Clean(r.Domain)), terminal.Clean(entriesText(d.Entries)))
	w.Line("")
	for i := range d.Levels {
		w.level(i+1, &d.Levels[i])
	}
	if len(d.Levels) > 0 {
		w.Line("")
	}
	switch {
	case !r.Known:
		w.row("no rule", "%s", w.Paint(terminal.Yellow, terminal.Clean(d.Reason)))
		w.meant(r.DidYouMean)
		return
	case !d.Matched:
		w.row("no rule", "%s", w.Paint(terminal.Yellow, terminal.Clean(d.Reason)))
		w.meant(d.DidYouMean)
		return
	case d.FromRequest:
		w.row("rule", "none: the request carries its own limit")
	default:
		w.rule(r, d)
	}
	for i := range d.Limits {
		w.limit(&d.Limits[i], d)
	}
	for i, line := range d.Regions {
		w.row([]string{"regions", ""}[min(i, 1)], "%s", terminal.Clean(line))
	}
}

// bucket writes the order in which the pairs of a bucket's id are matched.
func (w reportWriter) bucket(q *QuotaBucket) {
	order := "the pairs are sorted by key"
	if len(q.Order) > 0 {
		order = "the pairs have the order " + terminal.Clean(strings.Join(q.Order, ", ")) + ", then others by key"
	}
	then := "passes"
	if q.Default == "deny" {
		then = "is denied"
	}
	w.row("bucket", "%s; without a rule everything %s", order, then)
}

func (w reportWriter) meant(guess string) {
	if guess != "" {
		w.row("", "did you mean %s?", w.Paint(terminal.Green, terminal.Clean(guess)))
	}
}

const maxValueWidth = 60 // characters of a candidate's value that are shown

func (w reportWriter) level(n int, l *Level) {
	w.Line("%d  %s", n, w.Paint(terminal.Bold, terminal.Clean(l.Key+"="+l.Value)))
	width := 0
	for _, c := range l.Candidates {
		width = max(width, len([]rune(valueText(&c))))
	}
	for _, c := range l.Candidates {
		mark, color := " ", terminal.Dim
		if c.Taken {
			mark, color = ">", terminal.Green
		}
		w.Line("   %s", w.Paint(color, fmt.Sprintf("%s %-8s %-*s  %s", mark, c.Kind, width, valueText(&c),
			terminal.Clean(c.Reason))))
	}
	if l.Reason != "" {
		w.Line("   %s", w.Paint(terminal.Yellow, terminal.Clean(l.Reason)))
	}
}

func valueText(c *Candidate) string {
	v := []rune(terminal.Clean(c.Value))
	if len(v) > maxValueWidth {
		return string(v[:maxValueWidth-3]) + "..."
	}
	return string(v)
}

func (w reportWriter) rule(r *Report, d *Descriptor) {
	rule := d.Rule
	name := terminal.Clean(rule.Path)
	if rule.Name != "" && rule.Name != rule.Path {
		name += " (" + terminal.Clean(rule.Name) + ")"
	}
	w.row("rule", "%s", w.Paint(terminal.Bold, name))
	if rule.File != "" {
		w.row("", "%s:%d:%d", terminal.Clean(rule.File), rule.Line, rule.Column)
	}
	var how []string
	switch {
	case rule.Unlimited:
		how = append(how, "unlimited: everything passes and nothing is counted")
	case d.Replaced:
		how = append(how, "replaced by the rule of another descriptor: its limits do not apply")
	case rule.Shadow.Value == "true":
		how = append(how, "shadow mode"+by(rule.Shadow)+": measured, not enforced")
	default:
		how = append(how, "enforced")
	}
	if rule.Quota.Value == "true" {
		how = append(how, "quota mode"+by(rule.Quota)+
			": the request is denied only when all descriptors in quota mode are over")
	}
	if len(rule.Replaces) > 0 {
		how = append(how, "replaces "+terminal.Clean(strings.Join(rule.Replaces, ", ")))
	}
	if rule.HitCost > 1 {
		how = append(how, fmt.Sprintf("each hit counts as %d", rule.HitCost))
	}
	if !rule.Unlimited && rule.OnError.Value != "" {
		how = append(how, "on_error "+rule.OnError.Value+by(rule.OnError))
	}
	if !rule.Unlimited && r.Admission.Value != "" {
		how = append(how, "admission "+r.Admission.Value+by(r.Admission))
	}
	w.row("mode", "%s", strings.Join(how, "; "))
	if d.Override != "" {
		w.row("override", "%s", w.Paint(terminal.Yellow, d.Override))
	}
}

// by returns the text that shows where a setting is set, or "" if the rule sets it.
func by(c Choice) string {
	switch c.By {
	case "domain":
		return " (the domain's)"
	case "server":
		return " (the server's)"
	default:
		return ""
	}
}

func (w reportWriter) limit(l *Limit, d *Descriptor) {
	words := l.Words
	if l.Name != "" && (d.Rule == nil || l.Name != d.Rule.Name) {
		words += " (" + l.Name + ")"
	}
	w.row("limit", "%s", w.Paint(terminal.Bold, terminal.Clean(words)))
	switch {
	case l.NotEnforced:
		w.row("", "%s", w.Paint(terminal.Yellow, "not enforced for this customer: denied requests pass"))
	case l.EnforcePercent > 0:
		w.row("", "enforced for this customer")
	}
	if l.Class != "" {
		w.row("class", "%s", terminal.Clean(l.Class))
	}
	w.row("key", "%s", terminal.Clean(l.Key))
	if s := l.State; s != nil {
		color := terminal.Green
		if s.Remaining == 0 {
			color = terminal.Red
		}
		w.row("state", "%s at %s", w.Paint(color, s.String()), terminal.Clean(d.StateOf))
	}
}

func (w reportWriter) headers(r *Report) {
	what := "headers"
	none := !r.HeadersAsked && len(r.Passing) == 0 && len(r.Denied) == 0
	if none {
		w.row(what, "none: neither the domain nor the server has them enabled")
	}
	if r.Passes && !none {
		w.row(what, "of the first request")
		w.list(r.Passing)
		what = ""
	}
	if r.Denies && !none {
		w.row(what, "of the first that is denied")
		w.list(r.Denied)
	}
	if !r.Denies {
		w.row("denied", "never: no limit of this request is enforced")
	}
}

func (w reportWriter) list(headers []Header) {
	if len(headers) == 0 {
		w.row("", "  none")
	}
	for _, h := range headers {
		w.row("", "  %s: %s", terminal.Clean(h.Name), terminal.Clean(h.Value))
	}
}

// entriesText returns a descriptor in the form that people write.
func entriesText(entries []Entry) string {
	pieces := make([]string, len(entries))
	for i, e := range entries {
		pieces[i] = e.Key + "=" + e.Value
	}
	return strings.Join(pieces, ", ")
}
