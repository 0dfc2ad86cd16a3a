package descriptor

import "strings"

// wildcard is a compiled value pattern: literal pieces with zero or more arbitrary bytes between them.
type wildcard struct {
	prefix string
	// pieces between prefix and suffix, in order. Each is matched at its leftmost place, which never misses a match
	middle []string
	suffix string
	size   int // total length of the pieces in bytes
}

// HasWildcard reports whether a rule's value is a pattern. Stars cannot be escaped: a rule cannot name a literal star.
func HasWildcard(value string) bool { return strings.IndexByte(value, '*') >= 0 }

func compileWildcard(pattern string) wildcard {
	pieces := strings.Split(pattern, "*")
	w := wildcard{prefix: pieces[0], suffix: pieces[len(pieces)-1], size: len(pattern) - len(pieces) + 1}
	for _, p := range pieces[1 : len(pieces)-1] {
		if p != "" {
			w.middle = append(w.middle, p)
		}
	}
	return w
}

func (w *wildcard) match(value string) bool {
	if len(value) < w.size || !strings.HasPrefix(value, w.prefix) || !strings.HasSuffix(value, w.suffix) {
		return false
	}
	value = value[len(w.prefix) : len(value)-len(w.suffix)]
	for _, piece := range w.middle {
		i := strings.Index(value, piece)
		if i < 0 {
			return false
		}
		value = value[i+len(piece):]
	}
	return true
}

// matchEntry matches the text of an entry (key, underscore, value) without building that text.
func (w *wildcard) matchEntry(key, value string) bool {
	t := entryText{key, value}
	size := t.size()
	if size < w.size || !t.has(w.prefix, 0) || !t.has(w.suffix, size-len(w.suffix)) {
		return false
	}
	at, end := len(w.prefix), size-len(w.suffix)
	for _, piece := range w.middle {
		i := t.index(piece, at)
		if i < 0 || i+len(piece) > end {
			return false
		}
		at = i + len(piece)
	}
	return true
}

// entryText is the text of an entry (key, underscore, value), kept as its parts.
type entryText struct{ key, value string }

func (t entryText) size() int { return len(t.key) + 1 + len(t.value) }

// has reports whether the text contains piece at position at. The piece must end within the text.
func (t entryText) has(piece string, at int) bool {
	if n := len(t.key) - at; n > 0 {
		n = min(n, len(piece))
		if t.key[at:at+n] != piece[:n] {
			return false
		}
		piece, at = piece[n:], at+n
	}
	if piece == "" {
		return true
	}
	if at == len(t.key) {
		if piece[0] != '_' {
			return false
		}
		piece, at = piece[1:], at+1
	}
	return strings.HasPrefix(t.value[at-len(t.key)-1:], piece)
}

// index returns the first position, at or after from, where the text contains piece, or -1.
func (t entryText) index(piece string, from int) int {
	if from < len(t.key) {
		if i := strings.Index(t.key[from:], piece); i >= 0 {
			return from + i
		}
	}
	for at := max(from, len(t.key)-len(piece)+1, 0); at <= len(t.key) && at+len(piece) <= t.size(); at++ {
		if t.has(piece, at) {
			return at
		}
	}
	from = max(from-len(t.key)-1, 0)
	if i := strings.Index(t.value[min(from, len(t.value)):], piece); i >= 0 {
		return len(t.key) + 1 + from + i
	}
	return -1
}
