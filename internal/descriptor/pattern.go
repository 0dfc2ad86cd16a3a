package descriptor

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
)

// pattern is a wildcard or a regular expression. Both are asked one after the other, in file order.
type pattern struct {
	wildcard wildcard
	regex    *regexp.Regexp // nil: it is the wildcard
	text     string         // as the rule file writes it
	child    node
}

func (p *pattern) match(value string) bool {
	if p.regex != nil {
		return p.regex.MatchString(value)
	}
	return p.wildcard.match(value)
}

func (p *pattern) kind() MatchKind {
	if p.regex != nil {
		return MatchRegex
	}
	return MatchWildcard
}

// maxRegexSize is the length of an expression in bytes. A longer one is no rule that a person wrote.
const maxRegexSize = 1024

// CompileRegex compiles a value_regex, in the syntax of RE2. It must match a value as a whole. Matching takes time in
// proportion to the length of the value, whatever the expression.
func CompileRegex(text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, errors.New("the expression is empty: write one, or leave value_regex out to match any value")
	}
	if len(text) > maxRegexSize {
		return nil, fmt.Errorf("the expression is longer than %d bytes", maxRegexSize)
	}
	// Parsed by itself first: what is put around it must neither mend it nor, after a \Q, become part of it.
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		var e *syntax.Error
		if errors.As(err, &e) {
			return nil, fmt.Errorf("%s in %q", e.Code, e.Expr)
		}
		return nil, err
	}
	re, err := regexp.Compile(`\A(?:` + parsed.String() + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("compile expression: %w", err)
	}
	return re, nil
}
