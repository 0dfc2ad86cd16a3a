package rulecheck

import (
	"regexp/syntax"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// glob is a text with stars: literal pieces with any bytes, or none, between them.
type glob struct {
	pieces []string
	exact  bool // the glob matches exactly the rule's values; otherwise the rule matches a subset
	fold   bool // the case of letters does not matter; the pieces are in lower case
}

// globOf returns a wildcard or an expression as a glob.
func globOf(n *node) glob {
	if n.kind == descriptor.MatchWildcard {
		return glob{strings.Split(n.value, "*"), true, n.fold}
	}
	flags := syntax.Perl
	if n.fold {
		flags |= syntax.FoldCase // its letters become stars
	}
	parsed, err := syntax.Parse(n.value, flags)
	if err != nil {
		return glob{pieces: []string{"", ""}}
	}
	g := globBuilder{exact: true}
	g.add(parsed)
	return glob{pieces: append(g.pieces, g.open), exact: g.exact}
}

type globBuilder struct {
	pieces []string
	open   string // the piece being written
	exact  bool
	ended  bool // a $ was found
}

func (g *globBuilder) star() {
	g.pieces = append(g.pieces, g.open)
	g.open = ""
}

func (g *globBuilder) add(re *syntax.Regexp) {
	if g.ended && re.Op != syntax.OpEndText {
		g.exact = false // the expression continues after its end anchor
	}
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			g.open += string(re.Rune)
			return
		}
	case syntax.OpConcat, syntax.OpCapture:
		for _, sub := range re.Sub {
			g.add(sub)
		}
		return
	case syntax.OpEmptyMatch:
		return
	case syntax.OpBeginText:
		if len(g.pieces) > 0 || g.open != "" {
			g.exact = false // not at the start: mostly nothing matches
		}
		return
	case syntax.OpEndText:
		g.ended = true
		return
	case syntax.OpStar:
		if op := re.Sub[0].Op; op == syntax.OpAnyChar || op == syntax.OpAnyCharNotNL {
			g.star()
			return
		}
	}
	g.star()
	g.exact = false
}

// anyBytes replaces the text that a star matches. No text of a rule file has this byte: YAML is UTF-8.
const anyBytes = "\xff"

// text is the glob with anyBytes where its stars are.
func (g glob) text() string { return strings.Join(g.pieces, anyBytes) }

// covers reports whether g matches every text that other matches. It is exact: a star of other matches any text, so
// only a star of g can cover it. text is other.text().
func (g glob) covers(other glob, text string) bool {
	switch {
	case !g.exact || other.fold && !g.fold && !g.everything():
		return false
	case g.fold:
		text = descriptor.Fold(text)
	}
	return g.match(text)
}

func (g glob) match(text string) bool {
	first, last := g.pieces[0], g.pieces[len(g.pieces)-1]
	if len(g.pieces) == 1 {
		return text == first
	}
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, p := range g.pieces[1 : len(g.pieces)-1] {
		i := strings.Index(text, p)
		if i < 0 {
			return false
		}
		text = text[i+len(p):]
	}
	return true
}

// everything reports whether the glob matches every value.
func (g glob) everything() bool {
	return g.exact && len(g.pieces) > 1 && strings.Join(g.pieces, "") == ""
}
