package override

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Resolve checks an override against rules, and completes its identity: the rule may be named by its path, by its path
// without the domain, by its name, and by the name of one of its limits. Afterwards Rule is the path, Limit is empty if
// the rule has one limit, and Entries have their grouped values. The error suggests a correction.
func Resolve(tree *descriptor.Tree, o *Override) error {
	if err := o.Validate(); err != nil {
		return err
	}
	d := tree.Domain(o.Domain)
	if d == nil {
		var names []string
		for d := range tree.EachDomain() {
			names = append(names, d.Name)
		}
		return fmt.Errorf("domain: there is no %s%s", yamlform.Quote(o.Domain), meant(o.Domain, names))
	}
	rule := d.Match(o.Entries)
	if rule == nil || !named(rule, o.Rule) {
		return mismatch(tree, o, rule)
	}
	if !rule.Overridable() {
		return fmt.Errorf("rule: %s allows no overrides: write `overridable: true` next to its `rate_limit`%s", rule.Path,
			at(rule))
	}
	if err := resolveLimit(rule, o); err != nil {
		return err
	}
	o.Rule = rule.Path
	o.Entries = rule.CountedEntries(o.Entries)
	return fits(rule, o)
}

// ResolveAll checks the overrides of a file against rules. It returns those that fit, and the errors of the others. A
// file must name rules by their paths: a service reads it without rules.
func ResolveAll(tree *descriptor.Tree, all []Placed) (good []Placed, errs []*yamlform.Error) {
	var before firsts
	for _, p := range all {
		rule, limit, sent := p.Rule, p.Limit, p.Entries
		if err := Resolve(tree, &p.Override); err != nil {
			errs = append(errs, p.At.Errorf("%v", err))
			continue
		}
		switch {
		case p.Rule != rule:
			errs = append(errs, p.At.Errorf("rule: a file needs the path: write `%s` instead of %s", p.Rule,
				yamlform.Quote(rule)))
			continue
		case !slices.Equal(p.Entries, sent):
			errs = append(errs, p.At.Errorf("entries: a file needs the values that count: write %s",
				yamlform.Quote(entries.Format(p.Entries))))
			continue
		case p.Limit != limit:
			errs = append(errs, p.At.Errorf("limit: the rule `%s` has one limit: leave out %s", p.Rule, yamlform.Quote(limit)))
			continue
		}
		if twice := before.twice(&p); twice != "" {
			errs = append(errs, p.At.Errorf("%s", twice))
			continue
		}
		good = append(good, p)
	}
	return good, errs
}

// SetOf returns the set of the overrides of a file.
func SetOf(all []Placed) *Set {
	return NewSet(0, func(yield func(*Identity, Numbers) bool) {
		for i := range all {
			if !yield(&all[i].Identity, all[i].Numbers) {
				return
			}
		}
	})
}

// named reports whether a text names the rule.
func named(rule *descriptor.Rule, text string) bool {
	return text == rule.Path || text == rule.Name || rule.Path == rule.Domain+"."+text || limitNamed(rule, text) >= 0
}

func limitNamed(rule *descriptor.Rule, name string) int {
	return slices.IndexFunc(rule.Limits, func(l descriptor.Limit) bool { return l.Name == name && name != "" })
}

func at(rule *descriptor.Rule) string {
	if rule.Position.Line == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", rule.Position.File, rule.Position.Line)
}

// meant suggests the name that was probably meant, and lists the names if there are few. It also recognizes synonyms.
func meant(word string, names []string, others ...string) string {
	slices.Sort(names)
	if c := yamlform.Closest(word, slices.Concat(names, others)); c != "" {
		return fmt.Sprintf(": did you mean `%s`?", c)
	}
	const many = 12
	if len(names) > many || len(names) == 0 {
		return ""
	}
	return ": write " + yamlform.List(names, "or")
}

// mismatch explains why the entries and the rule do not fit together. matched is the rule that the entries match, if
// any.
func mismatch(tree *descriptor.Tree, o *Override, matched *descriptor.Rule) error {
	var found []*descriptor.Rule
	var paths, others []string
	for _, r := range tree.Rules {
		if r.Domain != o.Domain {
			continue
		}
		if named(r, o.Rule) {
			found = append(found, r)
		}
		if matched == nil {
			paths = append(paths, r.Path)
			if others = append(others, strings.TrimPrefix(r.Path, r.Domain+".")); r.Name != "" {
				others = append(others, r.Name)
			}
		}
	}
	text := yamlform.Quote(entries.Format(o.Entries))
	switch {
	case len(found) == 0 && matched != nil:
		return fmt.Errorf("rule: there is no %s in domain `%s`: the entries match `%s`", yamlform.Quote(o.Rule), o.Domain,
			matched.Path)
	case len(found) == 0:
		return fmt.Errorf("rule: there is no %s in domain `%s`%s", yamlform.Quote(o.Rule), o.Domain,
			meant(o.Rule, paths, others...))
	case matched != nil:
		return fmt.Errorf("entries: %s match the rule `%s`, not `%s`: write that rule, or entries like %s", text,
			matched.Path, found[0].Path, shape(found[0]))
	case len(found) > 1:
		return fmt.Errorf("rule: %d rules are named %s, and the entries match none: write a path, `%s` or `%s`", len(found),
			yamlform.Quote(o.Rule), found[0].Path, found[1].Path)
	default:
		return fmt.Errorf("entries: %s match no rule: `%s` takes entries like %s", text, found[0].Path, shape(found[0]))
	}
}

// shape shows which entries a rule matches.
func shape(rule *descriptor.Rule) string {
	pieces := make([]string, len(rule.Levels))
	for i, l := range rule.Levels {
		if pieces[i] = l.Key + "=" + l.Value; l.Value == "" {
			pieces[i] = l.Key + "=..."
		}
	}
	return "`" + strings.Join(pieces, ",") + "`"
}

// resolveLimit makes Limit the name of one of the rule's limits, or empty.
func resolveLimit(rule *descriptor.Rule, o *Override) error {
	if len(rule.Limits) == 1 {
		if l := rule.Limits[0].Name; o.Limit != "" && o.Limit != l && o.Limit != rule.Name {
			return fmt.Errorf("limit: the rule `%s` has one limit: leave out %s", rule.Path, yamlform.Quote(o.Limit))
		}
		o.Limit = ""
		return nil
	}
	names := make([]string, len(rule.Limits))
	for i := range rule.Limits {
		names[i] = rule.Limits[i].Name
	}
	byRule := o.Rule != rule.Name && slices.Contains(names, o.Rule) // the rule was named by one of its limits
	switch {
	case byRule && o.Limit == "":
		o.Limit = o.Rule
	case byRule && o.Limit != o.Rule:
		return fmt.Errorf("limit: %s and %s are two limits of the rule `%s`: write one override for each",
			yamlform.Quote(o.Rule), yamlform.Quote(o.Limit), rule.Path)
	case o.Limit == "" && o.Kind == Replace:
		return fmt.Errorf("limit: the rule `%s` has several: write which one gets these numbers, %s (--limit-name of "+
			"`ratelimitd override set`)", rule.Path, yamlform.List(names, "or"))
	case o.Limit != "" && !slices.Contains(names, o.Limit):
		return fmt.Errorf("limit: the rule `%s` has no %s%s", rule.Path, yamlform.Quote(o.Limit), meant(o.Limit, names))
	}
	return nil
}

// fits reports why the rule's limits cannot have these numbers.
func fits(rule *descriptor.Rule, o *Override) error {
	most := rule.OverrideMax
	if o.Kind == Unlimited && most != descriptor.OverrideUnbounded {
		return fmt.Errorf("unlimited: overrides of the rule `%s` are bounded: write `requests_per_unit` of at most %d",
			rule.Path, most)
	}
	for i := range rule.Limits {
		l := rule.Limits[i]
		if o.Limit != "" && l.Name != o.Limit {
			continue
		}
		requests, burst := o.Requests, o.Burst
		switch {
		case o.Kind == Scale:
			requests, burst = scaled(l.Requests, o.Requests), scaled(l.Burst, o.Requests)
		case o.Burst != 0 && !l.Has(descriptor.SettingBurst):
			return fmt.Errorf("burst: a limit with the algorithm `%s` has none: leave it out", l.Algorithm)
		}
		switch {
		case o.Kind == Scale && (requests > most || l.Has(descriptor.SettingBurst) && burst > most):
			return fmt.Errorf("factor: %s makes %d of %d, and overrides of the rule `%s` are bounded by %d", Factor(o.Requests),
				requests, l.Requests, rule.Path, most)
		case o.Kind == Replace && requests > most:
			return fmt.Errorf("requests_per_unit: overrides of the rule `%s` are bounded: write at most %d", rule.Path, most)
		case o.Kind == Replace && burst > most:
			return fmt.Errorf("burst: overrides of the rule `%s` are bounded: write at most %d", rule.Path, most)
		}
		if err := o.Apply(&l, most); err != nil {
			return fmt.Errorf("with these numbers the rule `%s` cannot be counted: %w", rule.Path, err)
		}
	}
	return nil
}
