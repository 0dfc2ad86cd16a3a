package rulecheck

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// oddNames are the names of characters that come with text from a page or a word processor.
var oddNames = map[rune]string{
	0x00a0: "no-break space", 0x00ad: "soft hyphen", 0x200b: "zero width space", 0x200c: "zero width non-joiner",
	0x200d: "zero width joiner",
	0x200e: "left-to-right mark", 0x200f: "right-to-left mark", 0x202f: "narrow no-break space", 0x2060: "word joiner",
	0xfeff: "byte order mark",
	0x202a: "left-to-right embedding", 0x202b: "right-to-left embedding", 0x202c: "pop directional formatting",
	0x202d: "left-to-right override",
	0x202e: "right-to-left override", 0x2066: "left-to-right isolate", 0x2067: "right-to-left isolate",
	0x2068: "first strong isolate",
	0x2069: "pop directional isolate", 0x3000: "ideographic space", 0x3164: "hangul filler",
	0x2800: "blank braille pattern",
	0x2018: "left single quotation mark", 0x2019: "right single quotation mark", 0x201a: "low single quotation mark",
	0x201c: "left double quotation mark", 0x201d: "right double quotation mark", 0x201e: "low double quotation mark",
	0x00ab: "left guillemet", 0x00bb: "right guillemet", 0x2039: "left single guillemet", 0x203a: "right single guillemet",
	0xff02: "full width quotation mark",
}

// unseen reports whether a character is not seen, or looks like a space.
func unseen(r rune) bool {
	return r != ' ' && unicode.Is(unicode.Zs, r) || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) ||
		r == 0x3164 || r == 0x2800
}

// typographic reports whether a character is a quote that word processors write instead of " and '.
func typographic(r rune) bool {
	return r != '"' && r != '\'' && unicode.In(r, unicode.Pi, unicode.Pf) || r == 0x201a || r == 0x201e || r == 0xff02
}

// odd returns the first character of a text that its author probably did not mean, and the text without such
// characters. Joiners are right between letters of the scripts that need them, and quotes and apostrophes within a
// text.
func odd(text string) (first rune, without string) {
	runes := []rune(text)
	var kept strings.Builder
	for i, r := range runes {
		out := unseen(r)
		switch {
		case r == 0x200c || r == 0x200d:
			out = i == 0 || i == len(runes)-1 || runes[i-1] < 0x80 || runes[i+1] < 0x80
		case typographic(r):
			out = i == 0 || i == len(runes)-1
		}
		if !out {
			kept.WriteRune(r)
			continue
		}
		if first == 0 {
			first = r
		}
	}
	return first, kept.String()
}

// characters finds characters that nobody sees, and typographic quotes around a text.
func (c *checker) characters(what, text string, at yamlform.Position) {
	r, without := odd(text)
	if r == 0 {
		return
	}
	name := fmt.Sprintf("U+%04X", r)
	if n := oddNames[r]; n != "" {
		name += " (" + n + ")"
	}
	c.add(Warning, at, codeInvisible, "write "+yamlform.Quote(without),
		"%s %s has the character %s, which clients must send too",
		what, strconv.QuoteToASCII(yamlform.Clip(text)), name)
}

// octalNumber is a number that YAML 1.1 reads as octal.
var octalNumber = regexp.MustCompile(`^[-+]?0[0-7_]*[1-7][0-7_]*$`)

// octal finds a number with a zero before it, which is another number than it seems.
func (c *checker) octal(n *node) {
	for _, o := range n.octals {
		digits := strings.TrimLeft(strings.ReplaceAll(o.text, "_", ""), "+-0")
		value, err := strconv.ParseUint(digits, 8, 64)
		if err != nil || len(digits) == 1 {
			continue
		}
		c.add(Warning, o.at, codeOctal, fmt.Sprintf("write %d, or %s if you mean that", value, digits),
			"%s is the number %d: YAML reads a number that starts with 0 as octal", yamlform.Clip(o.text), value)
	}
}

// newlines finds expressions whose `.` ends at a newline, where a value with one has no limit then.
func (c *checker) newlines(nodes []*node, rest bool) {
	if rest {
		return
	}
	for _, n := range nodes {
		if n.kind != descriptor.MatchRegex {
			continue
		}
		re, err := syntax.Parse(n.value, syntax.Perl)
		if err != nil || !stopsAtNewline(re) {
			continue
		}
		c.add(Info, n.valueAt, codeNewline, "write `(?s)` before the expression, or a descriptor for all other values",
			"the `.` of %s does not match a newline, so a value with one matches no rule here", yamlform.Quote(n.value))
	}
}

func stopsAtNewline(re *syntax.Regexp) bool {
	if re.Op == syntax.OpAnyCharNotNL {
		return true
	}
	for _, sub := range re.Sub {
		if stopsAtNewline(sub) {
			return true
		}
	}
	return false
}
