package config

import (
	"crypto/sha256"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// Resource is what a rule file says, from somewhere else than a file: as plain values, and with paths in the place of
// lines.
type Resource struct {
	Name string // stands in errors and in the position of every rule
	// Unnamed: the name is made up, because none could be read.
	Unnamed bool
	Sum     [sha256.Size]byte // of what it was made of: the same name and sum are the same rules. Zero: not known
	Rules   yamlform.Pairs    // the top of a rule file
	Err     error             // why there are no values; nil if there are

	// Later, if it is there, makes Rules and Err when they are needed, once: what did not change is not asked for, and of many
	// large resources one at a time is made.
	Later func() (yamlform.Pairs, error)
}

// readResource reads one resource. It is a pure function.
func readResource(x *Resource) *source {
	rules, err := x.Rules, x.Err
	if x.Later != nil {
		rules, err = x.Later()
	}
	if err != nil {
		return &source{errs: []*yamlform.Error{{File: x.Name, Msg: err.Error()}}}
	}
	top, list, at := apart(rules)
	r := newRuleReader(x.Name, false, 0)
	r.resource = true
	domain := r.document(r.Plain(top))
	if list != nil {
		r.level++
		domain.Children = r.twice(r.descriptorList(r.PlainItems(at, list), len(list)))
		r.level--
	}
	return &source{domains: []descriptor.DomainSpec{domain}, rules: r.rules, errs: r.Errors()}
}

// apart parts the first level of descriptors from the rest: nodes are far larger than what they are made of, so each
// descriptor becomes nodes by itself. There is no list if it is not written as it should be.
func apart(rules yamlform.Pairs) (top yamlform.Pairs, list []any, at yamlform.Pair) {
	for i, f := range rules {
		if f.Key != "descriptors" {
			continue
		}
		value, is := f.Value.([]any)
		if !is || list != nil {
			return rules, nil, yamlform.Pair{}
		}
		list, at = value, f
		top = append(append(top, rules[:i]...), rules[i+1:]...)
	}
	if list == nil {
		top = rules
	}
	return top, list, at
}
