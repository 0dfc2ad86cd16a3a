package descriptor

import "strings"

// KeyEntries returns the entries that a counter's key of the form KeysOwn names, as far as the key tells. Where a
// pattern stands for values, the entry has the pattern, or one value of a list; a condition has an empty value. ok is
// false for a key that is not one of the domain, and for a long one, which contains a hash.
//
// The entries are for people. Only Match can tell whether they lead to the counter.
func KeyEntries(domain, key string) (entries []Entry, ok bool) {
	begin := string(appendEscaped(nil, domain)) + "|"
	at := strings.Index(key, begin) // there may be a prefix before it
	if at < 0 || hashed(key) {
		return nil, false
	}
	parts := splitUnescaped(key[at+len(begin):], '|')
	for _, part := range parts[:len(parts)-1] { // the last one is the algorithm and the window
		end := markIn(part)
		if end == len(part) {
			return nil, false
		}
		e := Entry{Key: unescaped(part[:end])}
		marked := splitUnescaped(part[end:], '=') // the value that counts is the last of them
		e.Value = unescaped(strings.TrimLeft(marked[len(marked)-1], "~"))
		entries = append(entries, e)
	}
	return entries, len(entries) > 0
}

// hashed reports whether a part of a key is a hash.
func hashed(key string) bool {
	for i := 0; i+1 < len(key); i++ {
		if key[i] == '\\' {
			if i++; key[i] == '#' {
				return true
			}
		}
	}
	return false
}

// splitUnescaped splits a text at each separator that is not escaped.
func splitUnescaped(text string, separator byte) (parts []string) {
	begin := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case separator:
			parts = append(parts, text[begin:i])
			begin = i + 1
		}
	}
	return append(parts, text[begin:])
}

// markIn returns the place of the first mark in a part of a key, which follows an entry's key.
func markIn(part string) int {
	for i := 0; i < len(part); i++ {
		switch part[i] {
		case '\\':
			i++
		case '=', '~':
			return i
		}
	}
	return len(part)
}

// unescaped is the reverse of appendEscaped.
func unescaped(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			i++
			if c = text[i]; c == '[' {
				c = '{'
			}
		}
		b.WriteByte(c)
	}
	return b.String()
}
