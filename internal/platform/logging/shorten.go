package logging

import "strings"

// maxText is the longest text from a client in the log, in bytes.
const maxText = 256

// Shorten returns the start of a text that a client sent. It is a copy, so that a log record does not keep a whole
// request in memory.
func Shorten(s string) string {
	if len(s) <= maxText {
		return strings.Clone(s)
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}
