package descriptor

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// pattern is a wildcard or a regular expression. The first one in file order that matches is taken.
type pattern struct {
	wildcard wildcard
	regex    *regexp.Regexp // nil: it is a wildcard, or in an automaton
	program  *program       // of regex
	kind     MatchKind
	text     string // as the rule file writes it
	child    node
}

// match says whether a pattern that is in no automaton matches. The first bytes of a value longer than most decide, as
// they do in an automaton.
func (p *pattern) match(value string, most int) bool {
	switch {
	case p.regex == nil:
		return p.wildcard.match(value)
	case len(value) > most:
		return p.program.begins(beginning(value, most))
	default:
		return p.regex.MatchString(value)
	}
}

// patterns are the wildcards and regular expressions for one key, in file order.
type patterns struct {
	list     []pattern
	automata []*automaton // of most expressions
	single   []int32      // the places in list of all others, which are tried one after the other
}

// find returns the child of the first pattern that matches, noNode if none does.
func (p *patterns) find(value string, most int) node {
	first := none
	for _, a := range p.automata {
		if a.first < first {
			first = min(first, a.find(value, most))
		}
	}
	for _, i := range p.single {
		if i >= first {
			break
		}
		if p.list[i].match(value, most) {
			first = i
			break
		}
	}
	if first == none {
		return noNode
	}
	return p.list[first].child
}

// finish makes the automata.
func (p *patterns) finish() error {
	var together []compiledRegex
	for i := range p.list {
		x := &p.list[i]
		if x.kind != MatchRegex {
			p.single = append(p.single, int32(i))
			continue
		}
		parsed, err := parseRegex(x.text)
		if err != nil {
			return err
		}
		alone := &program{}
		if err := alone.addExpression(int32(i), parsed); err != nil {
			return fmt.Errorf("compile expression: %w", err)
		}
		a := newAutomaton(alone, maxStates)
		if a != nil {
			together = append(together, compiledRegex{int32(i), parsed, a})
			continue
		}
		if x.regex, err = CompileRegex(x.text); err != nil {
			return err
		}
		x.program = alone
		p.single = append(p.single, int32(i))
	}
	for len(together) > 0 {
		n := min(len(together), maxTogether)
		if err := p.join(together[:n]); err != nil {
			return err
		}
		together = together[n:]
	}
	return nil
}

// compiledRegex is an expression with the automaton of it alone.
type compiledRegex struct {
	place  int32
	parsed *syntax.Regexp
	alone  *automaton
}

// join makes one automaton of several expressions if it is about as large as theirs are together, else it makes several:
// expressions that can all begin anywhere multiply.
func (p *patterns) join(list []compiledRegex) error {
	if len(list) == 1 {
		p.automata = append(p.automata, list[0].alone)
		return nil
	}
	all, states := &program{}, 64
	for _, x := range list {
		states += 2 * len(x.alone.ends)
		if err := all.addExpression(x.place, x.parsed); err != nil {
			return fmt.Errorf("compile expressions: %w", err)
		}
	}
	if a := newAutomaton(all, states); a != nil {
		p.automata = append(p.automata, a)
		return nil
	}
	half := len(list) / 2
	if err := p.join(list[:half]); err != nil {
		return err
	}
	return p.join(list[half:])
}

// DefaultPatternBytes is how many bytes of a value a value_regex sees at most, unless Options.PatternBytes says otherwise.
const DefaultPatternBytes = 4096

// maxRegexSize is the length of an expression in bytes. A longer one is no rule that a person wrote.
const maxRegexSize = 1024

// CompileRegex compiles a value_regex, in the syntax of RE2. It must match a value as a whole. Matching takes time in
// proportion to the length of the value, whatever the expression.
func CompileRegex(text string) (*regexp.Regexp, error) {
	parsed, err := parseRegex(text)
	if err != nil {
		return nil, err
	}
	re, err := regexp.Compile(`\A(?:` + parsed.String() + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("compile expression: %w", err)
	}
	return re, nil
}

// parseRegex parses an expression by itself: what CompileRegex puts around it must neither mend it nor, after a \Q, become
// part of it.
func parseRegex(text string) (*syntax.Regexp, error) {
	if text == "" {
		return nil, errors.New("the expression is empty: write one, or leave value_regex out to match any value")
	}
	if len(text) > maxRegexSize {
		return nil, fmt.Errorf("the expression is longer than %d bytes", maxRegexSize)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		var e *syntax.Error
		if errors.As(err, &e) {
			return nil, fmt.Errorf("%s in %q", e.Code, e.Expr)
		}
		return nil, err
	}
	return parsed, nil
}
