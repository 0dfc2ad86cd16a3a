package accesslog

import (
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// Part is one line of a mapping that comes from another source than a file, for example a flag.
type Part struct {
	From string // names the place in errors
	YAML string
}

// ParseParts reads a mapping that has a part on each line. Errors name the part instead of a file and a line.
func ParseParts(parts []Part) (*Mapping, []*yamlform.Error) {
	lines := make([]string, len(parts))
	for i, p := range parts {
		lines[i] = p.YAML
	}
	from := func(line int) string { return parts[min(max(line, 1), len(parts))-1].From }
	m, errs := ParseMapping("", []byte(strings.Join(lines, "\n")))
	for i, e := range errs {
		errs[i] = &yamlform.Error{File: from(e.Line), Msg: e.Msg}
	}
	if m != nil {
		for i := range m.fields {
			m.fields[i].at = yamlform.Position{File: from(m.fields[i].at.Line)}
		}
	}
	return m, errs
}
