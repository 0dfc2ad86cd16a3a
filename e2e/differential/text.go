package differential

import (
	"fmt"
	"strconv"
	"time"
)

// Text is what one version has written down. Its methods return the longer text, as append does.
type Text []byte

// Line begins a line.
func (t Text) Line(what string) Text { return append(append(t, '\n'), what...) }

// Name begins a value.
func (t Text) Name(name string) Text { return append(append(append(t, ' '), name...), '=') }

// Int writes a number.
func (t Text) Int(name string, n int64) Text { return strconv.AppendInt(t.Name(name), n, 10) }

// Uint writes a number.
func (t Text) Uint(name string, n uint64) Text { return strconv.AppendUint(t.Name(name), n, 10) }

// Bool writes a flag, if it is set.
func (t Text) Bool(name string, set bool) Text {
	if !set {
		return t
	}
	return append(append(t, ' '), name...)
}

// Quoted writes a text.
func (t Text) Quoted(name, text string) Text { return strconv.AppendQuote(t.Name(name), text) }

// Time writes a duration.
func (t Text) Time(name string, d time.Duration) Text { return t.Int(name, int64(d)) }

// Error writes an error with its type, if there is one.
func (t Text) Error(name string, err error) Text {
	if err == nil {
		return t
	}
	return fmt.Appendf(t.Name(name), "%T %q", err, err)
}
