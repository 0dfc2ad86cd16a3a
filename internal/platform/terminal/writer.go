package terminal

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Color is a colour of a terminal.
type Color string

// The colours.
const (
	Plain  Color = ""
	Bold   Color = "1"
	Dim    Color = "2"
	Red    Color = "31"
	Green  Color = "32"
	Yellow Color = "33"
	Cyan   Color = "36"
)

// Writer collects text until Flush.
type Writer struct {
	*bufio.Writer
	Color bool // colours are on
}

// NewWriter returns a Writer that writes to a stream.
func NewWriter(to io.Writer, color bool) *Writer { return &Writer{bufio.NewWriter(to), color} }

// Paint returns text in a colour, or the plain text if colours are off.
func (w *Writer) Paint(c Color, s string) string {
	if !w.Color || c == Plain || s == "" {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// Line writes a line without trailing blanks.
func (w *Writer) Line(format string, args ...any) {
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf(format, args...), " "))
}

// Clean replaces each character that a terminal would interpret instead of show. It is used for text from rule files,
// clients and servers.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\ufffd'
	}, s)
}

// Count formats a number of things: "1 request", "2 requests".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
