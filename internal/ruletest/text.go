package ruletest

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
)

// TextOptions say how WriteText writes.
type TextOptions struct {
	Color    bool // with the colours of a terminal
	Verbose  bool // every case, also those that passed
	Coverage bool // the rules that no test reached
}

type textWriter struct {
	*bufio.Writer
	color bool
}

func newTextWriter(to io.Writer, color bool) *textWriter {
	return &textWriter{bufio.NewWriter(to), color}
}

// The colours of a terminal.
const (
	plain  = ""
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (w *textWriter) paint(color, s string) string {
	if !w.color || color == plain || s == "" {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

func (w *textWriter) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// WriteText writes a report for people.
func WriteText(to io.Writer, r *Report, o TextOptions) error {
	w := newTextWriter(to, o.Color)
	for i := range r.Files {
		w.file(&r.Files[i], o.Verbose)
	}
	if o.Coverage && r.Coverage != nil {
		w.coverage(r.Coverage)
	}
	w.summary(r)
	return w.Flush()
}

func (w *textWriter) file(f *FileResult, verbose bool) {
	if len(f.Errors) > 0 {
		w.line("%s   %s", w.paint(red, "BAD"), w.paint(bold, f.Name))
		for i := range f.Errors {
			w.line("  %s", &f.Errors[i])
		}
		w.line("")
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
		w.line("%s    %s  %s, %s", w.paint(green, "ok"), f.Name, count(len(f.Cases), "case"), count(requests, "request"))
	default:
		w.line("%s  %s  %d of %s failed", w.paint(red, "FAIL"), w.paint(bold, f.Name), failed, count(len(f.Cases), "case"))
	}
	for i := range f.Cases {
		c := &f.Cases[i]
		if verbose && len(c.Failures) == 0 {
			w.line("  %s  %s", w.paint(green, "ok"), c.Name)
		}
		for j := range c.Failures {
			w.failure(f, c, &c.Failures[j])
		}
	}
	if failed > 0 {
		w.line("")
	}
}

func (w *textWriter) failure(f *FileResult, c *CaseResult, x *Failure) {
	w.line("")
	w.line("  %s %s", w.paint(red, "---"), w.paint(bold, c.Name))
	w.line("      %s", x.where())
	for i, asked := range x.Asked {
		label := "asked"
		if i > 0 {
			label = "and"
		}
		w.line("      %-5s  %s", label, asked)
	}
	if x.Problem != "" {
		w.line("    %s:%d:%d: %s", f.Name, x.Line, x.Col, x.Problem)
	}
	for _, d := range x.Differences {
		w.line("    %s:%d:%d: %s", f.Name, d.Line, d.Col, d.What)
		w.line("      %s", w.paint(green, "- expected  "+d.Want))
		w.line("      %s", w.paint(red, "+ got       "+d.Got))
	}
	for i := range x.State {
		label := "state"
		if i > 0 {
			label = ""
		}
		w.line("      %s", w.paint(dim, fmt.Sprintf("%-5s  %s", label, &x.State[i])))
		if at := x.State[i].rule(); at != "" {
			w.line("      %s", w.paint(dim, "       "+at))
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

// String returns what is left of the limit.
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
		if s.Wait != FormatSpan(0) {
			fmt.Fprintf(&b, ", wait %s", s.Wait)
		}
		if s.Delay != FormatSpan(0) {
			fmt.Fprintf(&b, ", delay %s", s.Delay)
		}
	}
	return b.String()
}

// rule returns the rule and its position, "" if there was none.
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

func (w *textWriter) coverage(c *Coverage) {
	for i := range c.Errors {
		w.line("%s   %s", w.paint(red, "BAD"), &c.Errors[i])
	}
	for _, m := range c.Missed {
		w.line("%s:%d:%d: no test reaches %s", m.File, m.Line, m.Col, w.paint(yellow, m.Rule))
	}
	color := green
	if c.Reached < c.Rules {
		color = yellow
	}
	w.line("coverage: %s (%d of %s)", w.paint(color, fmt.Sprintf("%.1f%%", c.Percent())), c.Reached, count(c.Rules, "rule"))
}

func (w *textWriter) summary(r *Report) {
	took := r.Elapsed.Round(time.Millisecond)
	if r.Elapsed < 10*time.Millisecond {
		took = r.Elapsed.Round(10 * time.Microsecond)
	}
	text, color := count(r.Cases, "case")+" passed", green
	if r.Failed > 0 {
		text, color = fmt.Sprintf("%d of %s failed", r.Failed, count(r.Cases, "case")), red
	}
	if r.Bad > 0 {
		text, color = text+", "+count(r.Bad, "file")+" cannot be run", red
	}
	w.line("%s, %s in %s", w.paint(color, text), count(r.Requests, "request"), took)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
