package logging

import (
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// maxText bounds what is logged of a caller's text, in bytes.
const maxText = 256

// Shorten is the beginning of a text that a caller sent. It is a copy, so that a log record does not keep a whole request
// in memory.
func Shorten(s string) string {
	if len(s) <= maxText {
		return strings.Clone(s)
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// Entries is the beginning of a descriptor: key=value, key=value.
func Entries(entries []descriptor.Entry) string {
	var b strings.Builder
	for i := range entries {
		if b.Len() > maxText {
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(Shorten(entries[i].Key))
		b.WriteByte('=')
		b.WriteString(Shorten(entries[i].Value))
	}
	return Shorten(b.String())
}
