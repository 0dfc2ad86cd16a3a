package rulecheck

import (
	"fmt"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// value checks how a node matches values.
func (c *checker) value(n *node) {
	c.characters("the key", n.key, n.keyAt)
	if n.kind == descriptor.MatchExact || n.kind == descriptor.MatchWildcard {
		c.characters("the value", n.value, n.valueAt)
	}
	for _, v := range n.values {
		c.characters("the value", v.text, v.at)
	}
	for i := range n.limits {
		c.characters("the name", n.limits[i].name, n.limits[i].position("name"))
	}
	c.octal(n)
	if key := strings.TrimSpace(n.key); key != n.key {
		c.add(Warning, n.keyAt, codeValueLiteral, "write "+yamlform.Quote(key),
			"the key %s starts or ends with a space, which clients must send too", yamlform.Quote(n.key))
	}
	switch n.kind {
	case descriptor.MatchExact:
		c.literal(n)
	case descriptor.MatchWildcard:
		if !c.literal(n) {
			c.star(n)
		}
	case descriptor.MatchRegex:
		c.dot(n)
	}
}

var (
	expression = regexp.MustCompile(`^\^|\$$|(^|/)\.[*+]|\.\+|\\[dwsbDWS./-]|\[[^\]]*-[^\]]*\]|\([^)]*\|[^)]*\)`)
	choices    = regexp.MustCompile(`^[\w.-]+(\s*\|\s*[\w.-]+)+$`)
	commas     = regexp.MustCompile(`^[\w.-]+(, ?[\w.-]+)+$`)
	template   = regexp.MustCompile(`\{\w*\}|/:\w+|<\w+>`)
)

// maskedAddress is the key under which Envoy sends the network of a client's address, as text.
const maskedAddress = "masked_remote_address"

// literal finds values that look like something else than a text with stars.
func (c *checker) literal(n *node) bool {
	warn := func(fix, format string, args ...any) bool {
		c.add(Warning, n.valueAt, codeValueLiteral, fix, format, args...)
		return true
	}
	v := n.value
	if _, err := netip.ParsePrefix(v); err == nil {
		if n.key == maskedAddress {
			return true
		}
		return warn("write `value_cidr: "+v+"`", "%s is compared as text: no address in this network is matched",
			yamlform.Quote(v))
	}
	if choices.MatchString(v) {
		return warn("write `values: ["+splitList(v, "|")+"]`", "%s is compared as text: the | does not separate values",
			yamlform.Quote(v))
	}
	if commas.MatchString(v) {
		return warn("write `values: ["+splitList(v, ",")+"]`", "%s is compared as text: the comma does not separate values",
			yamlform.Quote(v))
	}
	if expression.MatchString(v) {
		if _, err := syntax.Parse(v, syntax.Perl); err == nil {
			return warn("write it as `value_regex`", "%s looks like a regular expression, but only * is special in a `value`",
				yamlform.Quote(v))
		}
	}
	if template.MatchString(v) {
		parts := template.Split(v, -1)
		for i := range parts {
			parts[i] = strings.ReplaceAll(regexp.QuoteMeta(parts[i]), `\*`, `.*`)
		}
		joined := parts[0]
		for i, found := range template.FindAllString(v, -1) {
			if strings.HasPrefix(found, "/") {
				joined += "/"
			}
			joined += "[^/]+" + parts[i+1]
		}
		return warn("write `value_regex: '"+joined+"'`", "%s looks like a template, but is compared as text",
			yamlform.Quote(v))
	}
	if trimmed := strings.TrimSpace(v); trimmed != v {
		return warn("write "+yamlform.Quote(trimmed), "%s starts or ends with a space, which clients must send too",
			yamlform.Quote(v))
	}
	return false
}

func splitList(v, sep string) string {
	parts := strings.Split(v, sep)
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return strings.Join(parts, ", ")
}

var (
	fourStart = regexp.MustCompile(`^(\d{1,3}\.){1,3}$`)
	fourCut   = regexp.MustCompile(`^(\d{1,3}\.){1,3}\d{1,3}$`)
	sixStart  = regexp.MustCompile(`^([0-9a-fA-F]{1,4}:){1,7}:?$`)
	noAddress = regexp.MustCompile(`(?i)version|release|build|price|amount`)
	stars     = regexp.MustCompile(`\*+`)
	hostname  = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}$`)
)

// star finds stars that probably match more than intended.
func (c *checker) star(n *node) {
	v := n.value
	pieces := strings.Split(stars.ReplaceAllString(v, "*"), "*")
	first, last := pieces[0], pieces[len(pieces)-1]
	if strings.Trim(v, "*") == "" {
		if !n.share { // share makes all values of a star use one counter
			c.add(Warning, n.valueAt, codeStarAlone, "leave `value` out",
				"a lone `*` matches every value, like a descriptor without `value`, but it is tried before the patterns that "+
					"follow it")
		}
		return
	}
	trailing := len(pieces) == 2 && last == ""
	if trailing && !noAddress.MatchString(n.key) {
		if fix, example := network4(first); example != "" {
			c.add(Warning, n.valueAt, codeStarAddress, fix, "%s matches text, not addresses: it also matches %s",
				yamlform.Quote(v), yamlform.Quote(example))
			return
		}
		if sixStart.MatchString(first) {
			c.add(Warning, n.valueAt, codeStarAddress, "write the network as `value_cidr`",
				"%s matches text, not addresses: other notations of the same addresses are missed", yamlform.Quote(v))
			return
		}
	}
	inner := len(pieces) - 2
	if inner > 0 && first == "" {
		inner-- // *a* is an intended search for a piece
	}
	if len(pieces) == 2 && first != "" && last != "" || inner > 0 {
		class := "[^/]+"
		if end, _ := utf8.DecodeLastRuneInString(first); !strings.Contains(v, "/") &&
			(unicode.IsPunct(end) || unicode.IsSymbol(end)) {
			class = "[^" + strings.ReplaceAll(string(end), "-", `\-`) + "]+"
		}
		fix := "if you do not mean that, write `value_regex: '" + asRegex(pieces, class) + "'`"
		filled := strings.Replace(v, "*", insideExample(first, v), 1)
		c.add(Warning, n.valueAt, codeStarInside, fix, "the `*` matches any text, including separators: %s also matches %s",
			yamlform.Quote(v), yamlform.Quote(filled))
		return
	}
	switch {
	case trailing && strings.Contains(first, "/") && endsInWord(first):
		c.add(Warning, n.valueAt, codeStarBoundary, "write \""+first+"/*\", and \""+first+"\" in its own descriptor",
			"%s also matches longer names, such as %s", yamlform.Quote(v), yamlform.Quote(first+"x"))
	case len(pieces) == 2 && first == "" && hostname.MatchString(last):
		c.add(Warning, n.valueAt, codeStarBoundary, "write \"*."+last+"\", and \""+last+"\" in its own descriptor",
			"%s matches every name with this ending, such as %s", yamlform.Quote(v), yamlform.Quote("evil"+last))
	}
}

// network4 returns the network of the start of an IPv4 address, and an example of another address that a star after it
// matches.
func network4(first string) (fix, example string) {
	switch {
	case fourStart.MatchString(first):
		dots := strings.Count(first, ".")
		text := first + strings.TrimSuffix(strings.Repeat("0.", 4-dots), ".")
		if p, err := netip.ParsePrefix(fmt.Sprintf("%s/%d", text, 8*dots)); err == nil {
			return "write `value_cidr: " + p.String() + "`", first + "evil.example"
		}
	case fourCut.MatchString(first):
		return "write the network as `value_cidr`", first + "0.evil.example"
	}
	return "", ""
}

// asRegex returns the wildcard as an expression. Its inner stars match class.
func asRegex(pieces []string, class string) string {
	var b strings.Builder
	for i, p := range pieces {
		if i > 0 {
			if i == len(pieces)-1 && p == "" || i == 1 && pieces[0] == "" {
				b.WriteString(".*")
			} else {
				b.WriteString(class)
			}
		}
		b.WriteString(regexp.QuoteMeta(p))
	}
	return b.String()
}

// insideExample returns a text that a star was probably not intended to match.
func insideExample(first, whole string) string {
	if strings.Contains(whole, "/") {
		return "a/b"
	}
	if end, _ := utf8.DecodeLastRuneInString(first); unicode.IsPunct(end) {
		return "a" + string(end) + "b"
	}
	return "a/b"
}

func endsInWord(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(s)
	return unicode.IsLetter(r) || unicode.IsDigit(r)
}

// dot finds a dot between letters or digits without a quantifier.
func (c *checker) dot(n *node) {
	v := n.value
	class := false
	word := func(i int) bool {
		return i >= 0 && i < len(v) && (v[i] >= 'a' && v[i] <= 'z' || v[i] >= 'A' && v[i] <= 'Z' || v[i] >= '0' &&
			v[i] <= '9')
	}
	for i := 0; i < len(v); i++ {
		switch {
		case v[i] == '\\':
			i++
		case v[i] == '[':
			class = true
		case v[i] == ']':
			class = false
		case v[i] == '.' && !class && word(i-1) && word(i+1):
			end := i + 1
			for end < len(v) && word(end) {
				end++
			}
			start := i
			for start > 0 && word(start-1) {
				start--
			}
			if start > 0 && v[start-1] == '\\' {
				continue // \d. and such: the letter is a class
			}
			part := v[start:end]
			c.add(Warning, n.valueAt, codeRegexDot, "write `"+strings.ReplaceAll(part, ".", `\.`)+"`, in single quotes",
				"the `.` in `%s` matches any character: the expression also matches %s", yamlform.Clip(part),
				yamlform.Quote(strings.Replace(part, ".", "-", 1)))
			return
		}
	}
}
