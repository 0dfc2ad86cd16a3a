package logging

import "strings"

// maxText bounds what is logged of a caller's text, in bytes.
const maxText = 256

// Shorten is the beginning of a text that a caller sent. It is a copy, so that a log record does not keep a whole
// request in memory.
func Shorten(s string) string {
	if len(s) <= maxText {
		return strings.Clone(s)
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
