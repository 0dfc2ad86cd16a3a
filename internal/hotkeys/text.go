package hotkeys

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	textSize = 174
	textHead = 96 // of a key that is cut
	cutMark  = `\...`
)

// text is a counter's key, of a long one what cutTo leaves of it.
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

// cutTo leaves the beginning and the end of a long key, in textSize bytes: the end names the last entry, which tells
// most, and the window.
func cutTo(to, key []byte) int {
	head := key[:textHead]
	backslashes := len(head) - len(bytes.TrimRight(head, `\`))
	head = head[:len(head)-backslashes%2] // half of an escape would make another one of the mark
	n := copy(to, head)
	n += copy(to[n:], cutMark)
	return n + copy(to[n:textSize], key[len(key)-(textSize-n):])
}

func (t *text) String() string { return string(t.bytes[:t.size]) }

// Printable is a counter's key as a line of text can show it: what is not printable, such as control characters, marks
// that turn the direction of writing, and bytes that are no UTF-8, stands as an escape \n, \x1b or \u202e. Our keys
// have other escapes of their own, so that nothing in them looks like something else.
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
