package descriptor

import "strings"

// wildcard is a compiled value pattern: literal pieces with any bytes, also none, between them.
type wildcard struct {
	prefix string
	middle []string // in order; the leftmost place of each is taken, which never loses a match
	suffix string
	size   int // bytes that the pieces need together
}

// HasWildcard says whether a rule's value is a pattern. There is no escape: a literal star cannot be asked for.
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
