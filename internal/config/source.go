package config

import (
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// source is the content of one version of a rule file.
type source struct {
	domains  []descriptor.DomainSpec
	rules    int
	errs     []*yamlform.Error // if there are any, do not use the rest of the source
	warnings []*yamlform.Error // probable mistakes that a lenient reader accepts
}

// readSource reads one rule file, leniently or strictly. It is a pure function.
func readSource(name string, data []byte, lenient bool) *source {
	r := newRuleReader(name, lenient)
	s := &source{}
	var other foreign
	examined := 0
	for _, doc := range r.Parse(data) {
		if doc.IsMap() && !doc.Has("domain") && !doc.Has("descriptors") {
			f, is := foreign{}, other.text != ""
			if examined++; examined <= mostExamined {
				f, is = foreignOf(doc)
			}
			if is && (other.text == "" || f.rules && !other.rules) {
				other = f
			}
			if is {
				continue
			}
		}
		s.domains = append(s.domains, r.document(doc))
	}
	if other.text != "" {
		other.doc.Errorf("%s", other.text)
	}
	if r.Found() > 0 {
		if at, is := template(name, data); is {
			return &source{errs: []*yamlform.Error{at.Errorf("%s", isTemplate)}}
		}
	}
	if len(s.domains) == 0 && r.Found() == 0 {
		r.ErrorAt(yamlform.Position{File: name, Line: 1, Col: 1},
			"no rules in this file: write `domain: NAME` and a list of `descriptors`")
	}
	s.rules = r.rules
	s.errs, s.warnings = r.Errors(), r.Warnings()
	return s
}

// hide replaces the errors of a file by one that shows nothing of its content. Whoever may write links to the directory
// of rules, such as the author of a pull request, could otherwise read any file of the machine in the messages about
// it.
func (s *source) hide(name string) {
	if len(s.errs) == 0 {
		return
	}
	first := s.errs[0]
	s.errs = []*yamlform.Error{{File: name, Line: first.Line, Col: first.Col,
		Msg: "the file that this link leads to cannot be used, and is outside of the " +
			"directory of rules, so nothing of it is shown: check the file itself"}}
	s.warnings = nil
}

// ruleAndLimit is a rule and its limit in one allocation: there are many of them.
type ruleAndLimit struct {
	rule  descriptor.Rule
	limit [1]descriptor.Limit
}
