package config

import (
	"crypto/sha256"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Resource is the content of a rule file that comes from another source. It consists of plain values, and positions are
// paths instead of lines.
type Resource struct {
	Name string // is part of errors and of the position of every rule
	// Unnamed means that Name is generated, because the resource could not be decoded.
	Unnamed bool
	Sum     [sha256.Size]byte // checksum of the encoded resource: equal name and sum mean equal rules; zero if unknown
	Rules   yamlform.Pairs    // the top of a rule file
	Err     error             // why there are no Rules; nil if there are

	// Later, if set, is called once, when Rules and Err are needed, and returns them. It is not called for unchanged
	// resources, and only one of many large resources is in memory at a time.
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
	top, list, at := splitDescriptors(rules)
	r := newRuleReader(x.Name, false)
	r.resource = true
	domain := r.document(r.Plain(top))
	if list != nil {
		r.level++
		domain.Children = r.unique(r.descriptorList(r.PlainItems(at, list), len(list)))
		r.level--
		r.finish(&domain)
	}
	return &source{domains: []descriptor.DomainSpec{domain}, rules: r.rules, errs: r.Errors()}
}

// splitDescriptors splits the first level of descriptors from the rest. YAML nodes are much larger than plain values,
// so only one descriptor at a time becomes nodes. The list is nil if the descriptors are not one list.
func splitDescriptors(rules yamlform.Pairs) (top yamlform.Pairs, list []any, at yamlform.Pair) {
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
