package descriptor

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// Fold returns a value with the letters A to Z in lower case. Other letters stay as they are: which of them are the
// same depends on the language.
func Fold(value string) string {
	first := 0
	for first < len(value) && !upper(value[first]) {
		first++
	}
	if first == len(value) {
		return value
	}
	var b strings.Builder
	b.Grow(len(value))
	b.WriteString(value[:first])
	for i := first; i < len(value); i++ {
		c := value[i]
		if upper(c) {
			c |= 0x20
		}
		b.WriteByte(c)
	}
	return b.String()
}

func upper(c byte) bool { return 'A' <= c && c <= 'Z' }

// foldRegex makes an expression match the letters that Fold changes in any case. The flag (?i) of package syntax would
// also match other letters, such as U+017F for s, which Fold keeps, so one customer would have several counters.
func foldRegex(re *syntax.Regexp) *syntax.Regexp {
	for i, sub := range re.Sub {
		re.Sub[i] = foldRegex(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return foldLiteral(re)
	case syntax.OpCharClass:
		re.Rune = foldClass(re.Rune)
	}
	return re
}

// foldLiteral returns a literal as characters that follow one another, with a class for each letter from A to Z.
func foldLiteral(re *syntax.Regexp) *syntax.Regexp {
	all := &syntax.Regexp{Op: syntax.OpConcat, Flags: re.Flags &^ syntax.FoldCase}
	for _, r := range re.Rune {
		one := &syntax.Regexp{Op: syntax.OpLiteral, Flags: re.Flags, Rune: []rune{r}}
		if r <= unicode.MaxASCII && unicode.IsLetter(r) {
			r &^= 0x20
			one.Op, one.Flags, one.Rune = syntax.OpCharClass, all.Flags, []rune{r, r, r | 0x20, r | 0x20}
		}
		all.Sub = append(all.Sub, one)
	}
	if len(all.Sub) == 1 {
		return all.Sub[0]
	}
	return all
}

// foldClass adds the other case of each letter to the pairs of a class. A class with the first and the last of all
// characters was written with a ^: its excluded characters are then excluded in both cases.
func foldClass(pairs []rune) []rune {
	negated := len(pairs) > 0 && pairs[0] == 0 && pairs[len(pairs)-1] == unicode.MaxRune
	if negated {
		pairs = otherRunes(pairs)
	}
	pairs = slices.Clone(pairs)
	for i, written := 0, len(pairs); i < written; i += 2 {
		for _, c := range [...]struct{ low, high, other rune }{{'A', 'Z', 'a' - 'A'}, {'a', 'z', 'A' - 'a'}} {
			if low, high := max(pairs[i], c.low), min(pairs[i+1], c.high); low <= high {
				pairs = append(pairs, low+c.other, high+c.other)
			}
		}
	}
	pairs = inOrder(pairs)
	if negated {
		pairs = otherRunes(pairs)
	}
	return pairs
}

// regexText writes an expression as text. The method String of package syntax takes a hundred thousand steps for each
// class such as [^/], so a character that the expression does not have stands for the classes, which are then written
// in its places.
func regexText(re *syntax.Regexp) string {
	literal := make(map[rune]bool)
	var classes []string
	var look func(*syntax.Regexp)
	look = func(re *syntax.Regexp) {
		switch re.Op {
		case syntax.OpLiteral:
			for _, r := range re.Rune {
				literal[r] = true
			}
		case syntax.OpCharClass:
			classes = append(classes, classText(re.Rune))
		}
		for _, sub := range re.Sub {
			look(sub)
		}
	}
	look(re)
	mark := rune(firstPrivate)
	for literal[mark] {
		mark++
	}
	var marked func(*syntax.Regexp) *syntax.Regexp
	marked = func(re *syntax.Regexp) *syntax.Regexp {
		if re.Op == syntax.OpCharClass {
			return &syntax.Regexp{Op: syntax.OpLiteral, Rune: []rune{mark}}
		}
		other := *re
		other.Sub = make([]*syntax.Regexp, len(re.Sub))
		for i, sub := range re.Sub {
			other.Sub[i] = marked(sub)
		}
		return &other
	}
	var b strings.Builder
	for i, part := range strings.Split(marked(re).String(), fmt.Sprintf(`\x{%x}`, mark)) {
		if i > 0 {
			b.WriteString(classes[i-1])
		}
		b.WriteString(part)
	}
	return b.String()
}

// firstPrivate is the first character for private use, which package syntax writes as its number.
const firstPrivate = 0xe000

// classText writes a class, for any place of an expression.
func classText(pairs []rune) string {
	var b strings.Builder
	b.WriteString(`(?-i:[`)
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(&b, `\x{%x}-\x{%x}`, pairs[i], pairs[i+1])
	}
	b.WriteString(`])`)
	return b.String()
}

// inOrder sorts the pairs of a class, and joins those that overlap.
func inOrder(pairs []rune) []rune {
	list := make([][2]rune, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, [2]rune{pairs[i], pairs[i+1]})
	}
	slices.SortFunc(list, func(a, b [2]rune) int { return int(a[0] - b[0]) })
	var joined []rune
	for _, p := range list {
		if last := len(joined) - 1; last > 0 && p[0] <= joined[last]+1 {
			joined[last] = max(joined[last], p[1])
			continue
		}
		joined = append(joined, p[0], p[1])
	}
	return joined
}

// otherRunes returns the class of all characters that a class in order does not have.
func otherRunes(pairs []rune) []rune {
	var others []rune
	next := rune(0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if next < pairs[i] {
			others = append(others, next, pairs[i]-1)
		}
		next = pairs[i+1] + 1
	}
	if next <= unicode.MaxRune {
		others = append(others, next, unicode.MaxRune)
	}
	return others
}
