package rulecheck

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// TextOptions control the output of WriteText.
type TextOptions struct {
	Color bool // use terminal colours
	Info  bool // include notes
}

var colorOf = map[Severity]terminal.Color{Error: terminal.Red, Warning: terminal.Yellow, Info: terminal.Cyan}

// WriteText writes a report for people: each finding with its line and a caret.
func WriteText(to io.Writer, r *Report, o TextOptions) error {
	w := terminal.NewWriter(to, o.Color)
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Severity == Info && !o.Info {
			continue
		}
		fmt.Fprintf(w, "%s: %s %s%s\n", w.Paint(terminal.Bold, clean(f.Position())),
			w.Paint(colorOf[f.Severity], string(f.Severity)+":"),
			clean(f.Message), w.Paint(terminal.Dim, f.label()))
		if f.Line > 0 {
			number := fmt.Sprintf("%5d | ", f.Line)
			source, caret := excerpt(f.Source, f.Col)
			fmt.Fprintf(w, "%s%s\n", w.Paint(terminal.Dim, number), source)
			fmt.Fprintf(w, "%s%s%s\n", w.Paint(terminal.Dim, "      | "), caret, w.Paint(colorOf[f.Severity], "^"))
		}
		if f.Fix != "" {
			fmt.Fprintf(w, "%s%s\n", w.Paint(terminal.Dim, "      = "), w.Paint(terminal.Green, clean(f.Fix)))
		}
		fmt.Fprintln(w)
	}
	color := terminal.Green
	switch {
	case r.Count(Error) > 0:
		color = terminal.Red
	case r.Count(Warning) > 0:
		color = terminal.Yellow
	}
	fmt.Fprintln(w, summary(r, o.Info, func(s string) string { return w.Paint(color, s) }))
	return w.Flush()
}

// summary is one line about a report.
func summary(r *Report, info bool, paint func(string) string) string {
	text := terminal.Count(r.Files, "file") + ": " + paint(count(r.Count(Error), "error")+", "+
		count(r.Count(Warning), "warning"))
	if n := r.Count(Info); n > 0 {
		text += ", " + count(n, "note")
		if !info {
			text += " (--info shows them)"
		}
	}
	return text
}

func count(n int, what string) string {
	if n == 0 {
		return "no " + what + "s"
	}
	return terminal.Count(n, what)
}

const widest = 120 // characters of a line that are shown

// excerpt returns the part of a line around a column, and the spaces before a caret below it.
func excerpt(line string, col int) (shown, before string) {
	runes := []rune(clean(line))
	at := min(max(col-1, 0), len(runes))
	from := 0
	if at > widest*3/4 {
		from = at - widest/2
	}
	to := min(len(runes), from+widest)
	lead, tail := "", ""
	if from > 0 {
		lead = "..."
	}
	if to < len(runes) {
		tail = "..."
	}
	columns := len(lead)
	for _, r := range runes[from:at] {
		columns += columnsOf(r)
	}
	return lead + string(runes[from:to]) + tail, strings.Repeat(" ", columns)
}

// columnsOf returns how many columns of a terminal a character takes, for the scripts that values are written in.
func columnsOf(r rune) int {
	switch {
	case unicode.Is(unicode.Mn, r):
		return 0
	case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul),
		r == 'ー', 0x3000 <= r && r <= 0x303f, 0xff01 <= r && r <= 0xff60, 0x1f300 <= r && r <= 0x1faff:
		return 2
	}
	return 1
}

// clean makes text of a rule file safe to show. It keeps the number of characters, so that a caret below the line is in
// the right column.
func clean(s string) string { return terminal.Clean(strings.ReplaceAll(s, "\t", " ")) }
