package rulecheck

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// TextOptions say how WriteText writes.
type TextOptions struct {
	Color bool // with the colours of a terminal
	Info  bool // also what is only worth knowing
}

// The colours of a terminal.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

var colorOf = map[Severity]string{Error: red, Warning: yellow, Info: cyan}

// WriteText writes a report for people: each finding with the line it is about and a caret.
func WriteText(to io.Writer, r *Report, o TextOptions) error {
	w := bufio.NewWriter(to)
	paint := func(color, s string) string {
		if !o.Color || s == "" {
			return s
		}
		return "\x1b[" + color + "m" + s + "\x1b[0m"
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Severity == Info && !o.Info {
			continue
		}
		fmt.Fprintf(w, "%s: %s %s %s\n", paint(bold, clean(f.Position())), paint(colorOf[f.Severity], string(f.Severity)+":"), clean(f.Message), paint(dim, "["+f.Code+"]"))
		if f.Line > 0 {
			number := fmt.Sprintf("%5d | ", f.Line)
			source, caret := excerpt(f.Source, f.Col)
			fmt.Fprintf(w, "%s%s\n", paint(dim, number), source)
			fmt.Fprintf(w, "%s%s%s\n", paint(dim, "      | "), caret, paint(colorOf[f.Severity], "^"))
		}
		if f.Fix != "" {
			fmt.Fprintf(w, "%s%s\n", paint(dim, "      = "), paint(green, clean(f.Fix)))
		}
		fmt.Fprintln(w)
	}
	color := green
	switch {
	case r.Count(Error) > 0:
		color = red
	case r.Count(Warning) > 0:
		color = yellow
	}
	fmt.Fprintln(w, summary(r, o.Info, func(s string) string { return paint(color, s) }))
	return w.Flush()
}

// summary is one line about a report.
func summary(r *Report, info bool, paint func(string) string) string {
	files := "1 file"
	if r.Files != 1 {
		files = fmt.Sprintf("%d files", r.Files)
	}
	text := files + ": " + paint(count(r.Count(Error), "error")+", "+count(r.Count(Warning), "warning"))
	if n := r.Count(Info); n > 0 {
		text += fmt.Sprintf(", %d worth knowing", n)
		if !info {
			text += " (--info shows them)"
		}
	}
	return text
}

func count(n int, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
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

// clean replaces the characters that control a terminal, each by one character.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '\ufffd'
	}, s)
}
