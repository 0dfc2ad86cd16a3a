package ruletest

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// TextOptions control the output of WriteText.
type TextOptions struct {
	Color    bool // use terminal colours
	Verbose  bool // every case, also the ones that passed
	Coverage bool // the rules that no test reached
}

// textWriter writes a report for people.
type textWriter struct{ *terminal.Writer }

// WriteText writes a report for people.
func WriteText(to io.Writer, r *Report, o TextOptions) error {
	w := textWriter{terminal.NewWriter(to, o.Color)}
	for i := range r.Files {
		w.file(&r.Files[i], o.Verbose)
	}
	if o.Coverage && r.Coverage != nil {
		w.coverage(r.Coverage)
	}
	w.summary(r)
	return w.Flush()
}

func (w textWriter) file(f *FileResult, verbose bool) {
	if len(f.Errors) > 0 {
		w.Line("%s   %s", w.Paint(terminal.Red, "BAD"), w.Paint(terminal.Bold, f.Name))
		for i := range f.Errors {
			w.Line("  %s", terminal.Clean(f.Errors[i].String()))
		}
		w.Line("")
		return
	}
	failed, requests := 0, 0
	for i := range f.Cases {
		requests += f.Cases[i].Requests
		if len(f.Cases[i].Failures) > 0 {
			failed++
		}
	}
	switch {
	case len(f.Cases) == 0:
		return // no coverage in the report
	case failed == 0:
		w.Line("%s    %s  %s, %s", w.Paint(terminal.Green, "ok"), f.Name, terminal.Count(len(f.Cases), "case"),
			terminal.Count(requests, "request"))
	default:
		w.Line("%s  %s  %d of %s failed", w.Paint(terminal.Red, "FAIL"), w.Paint(terminal.Bold, f.Name), failed,
			terminal.Count(len(f.Cases), "case"))
	}
	for i := range f.Cases {
		c := &f.Cases[i]
		if verbose && len(c.Failures) == 0 {
			w.Line("  %s  %s", w.Paint(terminal.Green, "ok"), terminal.Clean(c.Name))
		}
		for j := range c.Failures {
			w.failure(f, c, &c.Failures[j])
		}
	}
	if failed > 0 {
		w.Line("")
	}
}

func (w textWriter) failure(f *FileResult, c *CaseResult, x *Failure) {
	w.Line("")
	w.Line("  %s %s", w.Paint(terminal.Red, "---"), w.Paint(terminal.Bold, terminal.Clean(c.Name)))
	w.Line("      %s", x.where())
	for i, asked := range x.Asked {
		label := "asked"
		if i > 0 {
			label = "and"
		}
		w.Line("      %-5s  %s", label, terminal.Clean(asked))
	}
	if x.Problem != "" {
		w.Line("    %s:%d:%d: %s", f.Name, x.Line, x.Col, x.Problem)
	}
	for _, d := range x.Differences {
		w.Line("    %s:%d:%d: %s", f.Name, d.Line, d.Col, d.What)
		w.Line("      %s", w.Paint(terminal.Green, "- expected  "+terminal.Clean(d.Want)))
		w.Line("      %s", w.Paint(terminal.Red, "+ got       "+terminal.Clean(d.Got)))
	}
	for i := range x.State {
		label := "state"
		if i > 0 {
			label = ""
		}
		w.Line("      %s", w.Paint(terminal.Dim, fmt.Sprintf("%-5s  %s", label, terminal.Clean(x.State[i].String()))))
		if at := x.State[i].rule(); at != "" {
			w.Line("      %s", w.Paint(terminal.Dim, "       "+terminal.Clean(at)))
		}
	}
}

// where names the request and the step of a failure.
func (x *Failure) where() string {
	s := fmt.Sprintf("step %d of %d, %s after the start (%s)", x.Step, x.Steps, x.Offset, x.Time.Format(time.RFC3339Nano))
	if x.Requests > 1 {
		s += fmt.Sprintf(", request %d of %d", x.Request, x.Requests)
	}
	return s
}

// String returns the remaining hits of the limit.
func (s *State) String() string {
	var b strings.Builder
	b.WriteString(s.Code)
	switch {
	case s.Rule == noRule && s.Replaced == "":
		b.WriteString(", no rule matches")
	case s.Replaced != "":
		b.WriteString(", another rule replaces this one")
	case s.Unlimited:
		b.WriteString(", unlimited")
	case s.Limit == "":
		b.WriteString(", no limit applies")
	default:
		fmt.Fprintf(&b, ", limit %s", s.Limit)
		if s.Name != "" {
			fmt.Fprintf(&b, " (%s)", s.Name)
		}
		fmt.Fprintf(&b, ", %d remaining, reset %s", s.Remaining, s.Reset)
		if s.Wait != formatSpan(0) {
			fmt.Fprintf(&b, ", wait %s", s.Wait)
		}
		if s.Delay != formatSpan(0) {
			fmt.Fprintf(&b, ", delay %s", s.Delay)
		}
	}
	if s.Overridden {
		b.WriteString(", by an override")
	}
	return b.String()
}

// rule returns the rule and its position, or "" without a rule.
func (s *State) rule() string {
	path := s.Rule
	if s.Replaced != "" {
		path = s.Replaced
	}
	if path == noRule {
		return ""
	}
	text := "by " + path
	if s.Shadow {
		text += " (shadow mode)"
	}
	if s.File != "" {
		text += fmt.Sprintf(" at %s:%d:%d", s.File, s.Line, s.Col)
	}
	return text
}

func (w textWriter) coverage(c *Coverage) {
	for i := range c.Errors {
		w.Line("%s   %s", w.Paint(terminal.Red, "BAD"), terminal.Clean(c.Errors[i].String()))
	}
	for _, m := range c.Missed {
		w.Line("%s:%d:%d: no test reaches %s", m.File, m.Line, m.Col, w.Paint(terminal.Yellow, terminal.Clean(m.Rule)))
	}
	color := terminal.Green
	if c.Reached < c.Rules {
		color = terminal.Yellow
	}
	w.Line("coverage: %s (%d of %s)", w.Paint(color, fmt.Sprintf("%.1f%%", c.Percent())), c.Reached,
		terminal.Count(c.Rules, "rule"))
}

func (w textWriter) summary(r *Report) {
	took := r.Elapsed.Round(time.Millisecond)
	if r.Elapsed < 10*time.Millisecond {
		took = r.Elapsed.Round(10 * time.Microsecond)
	}
	text, color := terminal.Count(r.Cases, "case")+" passed", terminal.Green
	if r.Failed > 0 {
		text, color = fmt.Sprintf("%d of %s failed", r.Failed, terminal.Count(r.Cases, "case")), terminal.Red
	}
	if r.Bad > 0 {
		text, color = text+", "+terminal.Count(r.Bad, "file")+" cannot be run", terminal.Red
	}
	w.Line("%s, %s in %s", w.Paint(color, text), terminal.Count(r.Requests, "request"), took)
}
