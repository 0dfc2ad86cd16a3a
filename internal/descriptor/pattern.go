package descriptor

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"sort"
)

// pattern is a wildcard or a regular expression. The first one in file order that matches is chosen.
type pattern struct {
	wildcard wildcard
	regex    *regexp.Regexp // nil for a wildcard, and for an expression in an automaton
	program  *program       // the program of regex
	kind     MatchKind
	fold     bool   // the case of letters does not matter
	text     string // text in the rule file
	child    node
}

// match reports whether the pattern matches. It is for patterns that are not in an automaton. As in an automaton, an
// expression reads at most the first most bytes of a value. A wildcard with fold gets the value in lower case.
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
	automata []*automaton // automata of most of the expressions
	single   []int32      // the indexes in list of all other patterns, which are tried one after the other
}

// find returns the child of the first pattern that matches, or noNode if none does. If the value is longer than most,
// only expressions with a child above after match it; root: all of them.
func (p *patterns) find(value string, most int, after node) node {
	first, past := none, int32(-1)
	if after != root {
		past = int32(sort.Search(len(p.list), func(i int) bool { return p.list[i].child > after })) - 1
	}
	for _, a := range p.automata {
		if a.members[0] < first {
			first = min(first, a.find(value, most, past))
		}
	}
	lower, known := "", false // the value in lower case, made once for all patterns
	for _, i := range p.single {
		if i >= first {
			break
		}
		x, text := &p.list[i], value
		if i <= past && x.kind == MatchRegex && len(value) > most {
			continue
		}
		if x.fold && x.kind == MatchWildcard {
			if !known {
				lower, known = Fold(value), true
			}
			text = lower
		}
		if x.match(text, most) {
			first = i
			break
		}
	}
	if first == none {
		return noNode
	}
	return p.list[first].child
}

// finish builds the automata. work is how much of it is left for the domain.
func (p *patterns) finish(work *int) error {
	var together []compiledRegex
	for i := range p.list {
		x := &p.list[i]
		if x.kind != MatchRegex {
			p.single = append(p.single, int32(i))
			continue
		}
		parsed, err := parseRegex(x.text, x.fold)
		if err != nil {
			return err
		}
		alone := &program{}
		if err := alone.addExpression(int32(i), parsed); err != nil {
			return fmt.Errorf("compile expression: %w", err)
		}
		*work += workForInstruction * len(alone.insts)
		a := newAutomaton(alone, maxStates, work)
		if a != nil {
			together = append(together, compiledRegex{int32(i), parsed, a})
			continue
		}
		if x.regex, err = compileRegex(x.text, parsed, x.fold); err != nil {
			return err
		}
		x.program = alone
		p.single = append(p.single, int32(i))
	}
	for len(together) > 0 {
		n := min(len(together), maxTogether)
		if err := p.join(together[:n], work); err != nil {
			return err
		}
		together = together[n:]
	}
	return nil
}

// compiledRegex is an expression with an automaton that matches only this expression.
type compiledRegex struct {
	place  int32
	parsed *syntax.Regexp
	alone  *automaton
}

// join builds one automaton for several expressions if it is about as large as their separate automata together.
// Otherwise it builds several. The sizes multiply when all expressions can start anywhere in the text.
func (p *patterns) join(list []compiledRegex, work *int) error {
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
	if a := newAutomaton(all, states, work); a != nil {
		p.automata = append(p.automata, a)
		return nil
	}
	half := len(list) / 2
	if err := p.join(list[:half], work); err != nil {
		return err
	}
	return p.join(list[half:], work)
}

// maxOverlapWork bounds the work of comparing two expressions, in places that are looked at.
const maxOverlapWork = 1 << 17

// LongOverlap reports whether there are values of any length whose start may belong to a match of the expression first,
// and which then match only the expression second. It also returns true if the expressions are too large to find out.
// An expression with fold matches the letters A to Z in any case. A . is any character, including the end of a line.
func LongOverlap(first string, foldFirst bool, second string, foldSecond bool) bool {
	both := &program{}
	for i, x := range []struct {
		text string
		fold bool
	}{{first, foldFirst}, {second, foldSecond}} {
		parsed, err := parseRegex("(?s)"+x.text, x.fold)
		if err == nil {
			err = both.addExpression(int32(i), parsed)
		}
		if err != nil {
			return true
		}
	}
	work := maxOverlapWork
	a := newAutomaton(both, maxStates, &work)
	return a == nil || a.longOverlap()
}

// longOverlap computes LongOverlap on the automaton of both expressions.
func (a *automaton) longOverlap() bool {
	n := len(a.ends)
	after := func(s int) []uint16 { return a.next[s*a.classes:][:a.classes] }
	// long holds the states that long texts lead to while both expressions can continue. States without a predecessor are
	// removed, again and again. The remaining ones are on a cycle or behind one.
	long := make([]bool, n)
	for s := range long {
		long[s] = a.goesOn[s] == 1<<2-1
	}
	entries := make([]int, n) // number of transitions to each state from the remaining states
	for s := range long {
		for _, t := range after(s) {
			if long[s] {
				entries[t]++
			}
		}
	}
	var todo []int
	for s := range long {
		if long[s] && entries[s] == 0 {
			todo = append(todo, s)
		}
	}
	for ; len(todo) > 0; todo = todo[1:] {
		s := todo[0]
		long[s] = false
		for _, t := range after(s) {
			if entries[t]--; entries[t] == 0 && long[t] {
				todo = append(todo, int(t))
			}
		}
	}
	for s := range long {
		if long[s] {
			todo = append(todo, s)
		}
	}
	for ; len(todo) > 0; todo = todo[1:] { // adds all states behind them
		for _, t := range after(todo[0]) {
			if !long[t] {
				long[t] = true
				todo = append(todo, int(t))
			}
		}
	}
	for s := range long {
		if long[s] && a.ends[s] == 1 {
			return true
		}
	}
	return false
}

// defaultPatternBytes is how many bytes of a value a value_regex sees at most, if Options.PatternBytes is not set.
const defaultPatternBytes = 4096

// maxRegexSize is the maximum length of an expression in bytes. No person writes a longer one.
const maxRegexSize = 1024

// compileRegex compiles the expression of a value_regex, which parseRegex has read. It has the syntax of RE2 and must
// match the whole value. The time for a match is proportional to the length of the value, for every expression.
func compileRegex(text string, parsed *syntax.Regexp, fold bool) (*regexp.Regexp, error) {
	if fold {
		text = regexText(parsed)
	} else if _, err := syntax.Parse(text+`\E`, syntax.Perl); err == nil { // only after a \Q without its end
		text += `\E`
	}
	re, err := regexp.Compile(`\A(?:` + text + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("compile expression: %w", err)
	}
	return re, nil
}

// RegexInstructions checks a value_regex, and returns how many instructions it compiles to. Its memory, and the time to
// prepare it, grow with that number.
func RegexInstructions(text string) (int, error) {
	parsed, err := parseRegex(text, false)
	if err != nil {
		return 0, err
	}
	compiled, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, fmt.Errorf("compile expression: %w", err)
	}
	return len(compiled.Inst), nil
}

// parseRegex parses an expression without the text that compileRegex puts around it: that text must neither repair a
// broken expression nor, after a \Q, become part of it. With fold it matches the letters A to Z in any case.
func parseRegex(text string, fold bool) (*syntax.Regexp, error) {
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
	if fold {
		parsed = foldRegex(parsed)
	}
	return parsed, nil
}
