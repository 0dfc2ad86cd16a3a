package rulecheck

import (
	"regexp"
	"strings"
)

// directive is a comment that accepts findings:
//
//	value: "10.*" # check: ok star-address only addresses arrive here
//
// It applies to its line, or, if it is alone on its line, to the next line that is not a comment. A reason is required.
type directive struct {
	line, col int // position of the comment
	on        int // the line to which it applies
	codes     []string
	wrong     string // error in the directive itself; empty if valid
	used      map[string]bool
}

var directivePattern = regexp.MustCompile(`(?:^|\s)(#\s*check:\s*(.*))$`)

// directives finds the comments in the lines of a file.
func directives(lines []string) []*directive {
	var found []*directive
	for i, line := range lines {
		if !strings.Contains(line, "check:") {
			continue
		}
		m := directivePattern.FindStringSubmatchIndex(line)
		if m == nil {
			continue
		}
		d := &directive{line: i + 1, col: len([]rune(line[:m[2]])) + 1, on: i + 1, used: make(map[string]bool)}
		if strings.TrimSpace(line[:m[2]]) == "" {
			d.on++
			for d.on <= len(lines) && strings.HasPrefix(strings.TrimSpace(lines[d.on-1]), "#") {
				d.on++
			}
		}
		d.parse(line[m[4]:m[5]])
		found = append(found, d)
	}
	return found
}

func (d *directive) parse(text string) {
	words := strings.Fields(text)
	switch {
	case len(words) == 0 || words[0] != "ok":
		d.wrong = "a `# check:` comment without `ok`"
	case len(words) == 1:
		d.wrong = "which finding is accepted?"
	case len(words) == 2:
		d.wrong = "why is this accepted?"
	}
	if d.wrong != "" {
		return
	}
	for _, code := range strings.Split(words[1], ",") {
		if err := knownCode(code); err != nil {
			d.wrong = err.Error()
			continue
		}
		d.codes = append(d.codes, code)
	}
}

// accept removes the findings of a file that its comments accept, and adds findings about the comments themselves.
func accept(file string, all []Finding, ds []*directive) []Finding {
	on := make(map[int][]*directive)
	for _, d := range ds {
		on[d.on] = append(on[d.on], d)
	}
	kept := all[:0]
	for _, f := range all {
		accepted := false
		for _, d := range on[f.Line] {
			for _, code := range d.codes {
				if code == f.Code {
					d.used[code], accepted = true, true
				}
			}
		}
		if !accepted {
			kept = append(kept, f)
		}
	}
	for _, d := range ds {
		add := func(message, fix string) {
			kept = append(kept, Finding{File: file, Line: d.line, Col: d.col, Severity: Warning, Code: codeDirective,
				Message: message, Fix: fix})
		}
		if d.wrong != "" {
			add(d.wrong, "write `# check: ok CODE reason`")
		}
		for _, code := range d.codes {
			if !d.used[code] {
				add("this comment accepts "+code+", but nothing here has that code",
					"remove it, or move it to the line that the finding names")
			}
		}
	}
	return kept
}
