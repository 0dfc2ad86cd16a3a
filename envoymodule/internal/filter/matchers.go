package filter

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// headerMatchers returns whether a request fulfils all conditions on its headers, as Envoy's routes decide it.
func headerMatchers(all []*routev3.HeaderMatcher) (func(Stream) bool, error) {
	conditions := make([]func(Stream) bool, len(all))
	for i, m := range all {
		one, err := headerMatcher(m)
		if err != nil {
			return nil, fmt.Errorf("headers[%d]: %w", i, err)
		}
		conditions[i] = one
	}
	return every(conditions), nil
}

func every(conditions []func(Stream) bool) func(Stream) bool {
	return func(s Stream) bool {
		for _, matches := range conditions {
			if !matches(s) {
				return false
			}
		}
		return true
	}
}

func headerMatcher(m *routev3.HeaderMatcher) (func(Stream) bool, error) {
	name, invert := strings.ToLower(m.GetName()), m.GetInvertMatch()
	present, hasPresent := m.GetHeaderMatchSpecifier().(*routev3.HeaderMatcher_PresentMatch)
	if m.GetHeaderMatchSpecifier() == nil || hasPresent {
		expected := (!hasPresent || present.PresentMatch) != invert
		return func(s Stream) bool {
			_, n := s.Header(name, 0)
			return (n > 0) == expected
		}, nil
	}
	matches, err := headerValueMatcher(m)
	emptyIfAbsent := m.GetTreatMissingHeaderAsEmpty()
	return func(s Stream) bool {
		value, n := s.Header(name, 0)
		if n == 0 && !emptyIfAbsent {
			return false // also if the condition is inverted
		}
		found := matches(value)
		for i := 1; i < n && !found; i++ { // one of several values is enough
			value, _ = s.Header(name, i)
			found = matches(value)
		}
		return found != invert
	}, err
}

func headerValueMatcher(m *routev3.HeaderMatcher) (func(string) bool, error) {
	switch by := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_StringMatch:
		return stringMatcher(by.StringMatch)
	case *routev3.HeaderMatcher_RangeMatch:
		first, end := by.RangeMatch.GetStart(), by.RangeMatch.GetEnd()
		return func(value string) bool {
			n, err := strconv.ParseInt(value, 10, 64)
			return err == nil && first <= n && n < end
		}, nil
	default:
		return nil, fmt.Errorf("%w: use string_match", notSupported(m, "header_match_specifier"))
	}
}

func stringMatcher(m *matcherv3.StringMatcher) (func(string) bool, error) {
	compare := func(pattern string, with func(value, pattern string) bool) (func(string) bool, error) {
		if !m.GetIgnoreCase() {
			return func(value string) bool { return with(value, pattern) }, nil
		}
		lower := lowerASCII(pattern)
		return func(value string) bool { return with(lowerASCII(value), lower) }, nil
	}
	switch by := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return compare(by.Exact, func(value, pattern string) bool { return value == pattern })
	case *matcherv3.StringMatcher_Prefix:
		return compare(by.Prefix, strings.HasPrefix)
	case *matcherv3.StringMatcher_Suffix:
		return compare(by.Suffix, strings.HasSuffix)
	case *matcherv3.StringMatcher_Contains:
		return compare(by.Contains, strings.Contains)
	case *matcherv3.StringMatcher_SafeRegex:
		if m.GetIgnoreCase() {
			return nil, errors.New("ignore_case has no effect on safe_regex: write (?i) into the expression")
		}
		expression, err := regexp.Compile(`\A(?:` + by.SafeRegex.GetRegex() + `)\z`) // both are RE2
		if err != nil {
			return nil, err
		}
		return expression.MatchString, nil
	default:
		return nil, notSupported(m, "match_pattern")
	}
}

// lowerASCII changes the letters whose case Envoy ignores.
func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}

// queryMatchers returns whether a request fulfils all conditions on its query.
func queryMatchers(all []*routev3.QueryParameterMatcher) (func(Stream) bool, error) {
	conditions := make([]func(Stream) bool, len(all))
	for i, m := range all {
		name, matches, expected := m.GetName(), func(string) bool { return true }, true
		switch by := m.GetQueryParameterMatchSpecifier().(type) {
		case *routev3.QueryParameterMatcher_PresentMatch:
			expected = by.PresentMatch
		case *routev3.QueryParameterMatcher_StringMatch:
			var err error
			if matches, err = stringMatcher(by.StringMatch); err != nil {
				return nil, fmt.Errorf("query_parameters[%d]: %w", i, err)
			}
		}
		conditions[i] = func(s Stream) bool {
			path, _ := s.Header(":path", 0)
			value, found := parameter(path, name)
			return (found && matches(value)) == expected
		}
	}
	return every(conditions), nil
}

// parameter returns the first value of a parameter in the query of a path. As in Envoy, names and values are
// percent-decoded, a plus sign is itself, and a wrong encoding stays as it is.
func parameter(path, name string) (value string, found bool) {
	_, query, _ := strings.Cut(path, "?")
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		if key, value, _ := strings.Cut(pair, "="); decoded(key) == name {
			return decoded(value), true
		}
	}
	return "", false
}

func decoded(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b = append(b, byte(n))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}
