package descriptor

import "regexp"

// CompileRegex compiles a value_regex.
func CompileRegex(text string) (*regexp.Regexp, error) {
	parsed, err := parseRegex(text, false)
	if err != nil {
		return nil, err
	}
	return compileRegex(text, parsed, false)
}
