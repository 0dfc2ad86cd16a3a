package hotkeys

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	textSize = 174
	textHead = 96 // bytes that remain before the cut
	cutMark  = `\...`
)

// text is a counter's key, shortened by cutTo if it is long.
type text struct {
	size  uint8
	cut   bool
	bytes [textSize]byte
}

func (t *text) set(key []byte) {
	if t.cut = len(key) > textSize; t.cut {
		t.size = uint8(cutTo(t.bytes[:], key))
		return
	}
	t.size = uint8(copy(t.bytes[:], key))
}

// cutTo shortens a long key to textSize bytes by removing its middle. The end is kept because it has the last entry,
// which is the most specific one, and the window.
func cutTo(to, key []byte) int {
	head := key[:textHead]
	backslashes := len(head) - len(bytes.TrimRight(head, `\`))
	head = head[:len(head)-backslashes%2] // a single backslash would change the meaning of the mark
	n := copy(to, head)
	n += copy(to[n:], cutMark)
	return n + copy(to[n:textSize], key[len(key)-(textSize-n):])
}

func (t *text) String() string { return string(t.bytes[:t.size]) }

// Printable returns a counter's key for a line of text. Unprintable characters, such as control characters, marks that
// change the direction of writing, and invalid UTF-8, become escapes such as \n, \x1b or \u202e. The escapes that keys
// themselves contain are different ones, so the result is unambiguous.
func Printable(key string) string {
	var b strings.Builder
	for i := 0; i < len(key); {
		r, n := utf8.DecodeRuneInString(key[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			const digits = "0123456789abcdef"
			b.WriteString(`\x`)
			b.WriteByte(digits[key[i]>>4])
			b.WriteByte(digits[key[i]&15])
		case strconv.IsPrint(r):
			b.WriteString(key[i : i+n])
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		i += n
	}
	return b.String()
}
