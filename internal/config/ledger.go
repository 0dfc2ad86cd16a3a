package config

import (
	"fmt"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// ledger decides which file owns each domain, and collects the domains for one tree. Files are admitted in the order of
// their names: the first file with a domain owns it.
type ledger struct {
	merge  bool // files may share a domain
	alone  bool // no limit may have regions
	tree   descriptor.Options
	order  []*claim
	claims map[string]*claim
}

// claim is a domain and the files that define it.
type claim struct {
	specs []*descriptor.DomainSpec
	roots map[descriptor.Level]descriptor.Position // positions of the first level; nil while there is only one spec

	settings map[string]setting // settings by key, from the first spec that has the key
}

// admit adds all domains of a source. If one of them cannot be added, it adds nothing and returns the reasons.
func (l *ledger) admit(s *source) []*yamlform.Error {
	if len(s.errs) > 0 {
		return s.errs
	}
	var errs []*yamlform.Error
	within := ledger{merge: l.merge} // the domains of this source among themselves
	for i := range s.domains {
		d := &s.domains[i]
		if e := within.conflicts(d); len(e) > 0 {
			errs = append(errs, e...)
			continue
		}
		within.add(d)
		if l.alone && d.AcrossRegions {
			errs = append(errs, yamlform.Position(d.Position).Errorf(
				"domain %s has limits with `regions`, which only the service holds across regions: ask the service (package "+
					"client), or remove `regions`", yamlform.Quote(d.Name)))
		}
		errs = append(errs, l.conflicts(d)...)
	}
	if len(errs) > 0 {
		return yamlform.SortErrors(errs)
	}
	for i := range s.domains {
		l.add(&s.domains[i])
	}
	return nil
}

// conflicts returns why a domain cannot be added.
func (l *ledger) conflicts(d *descriptor.DomainSpec) []*yamlform.Error {
	c := l.claims[d.Name]
	if c == nil {
		return nil
	}
	if !l.merge {
		return []*yamlform.Error{yamlform.Position(d.Position).Errorf(
			"duplicate domain %s: it is already defined at %s; give this one another name, or move its descriptors there",
			yamlform.Quote(d.Name),
			where(c.specs[0].Position))}
	}
	if c.roots == nil {
		c.roots = make(map[descriptor.Level]descriptor.Position)
		c.note(c.specs[0])
	}
	errs := c.otherSettings(d)
	for i := range d.Children {
		n := &d.Children[i]
		identities(n, func(level descriptor.Level) {
			if first, taken := c.roots[level]; taken {
				errs = append(errs, yamlform.Position(n.Position).Errorf(
					"%s is already defined in domain %s, at %s", describe(level), yamlform.Quote(d.Name), where(first)))
			}
		})
	}
	return errs
}

// setting is a key of a domain. Its files may set it once, or several times with the same value.
type setting struct {
	value string
	at    descriptor.Position
}

// otherSettings returns an error for each setting of the domain that differs from the setting in another file.
func (c *claim) otherSettings(d *descriptor.DomainSpec) (errs []*yamlform.Error) {
	for key, value := range descriptor.DomainFacts.Of(&d.DomainSettings) {
		if first, said := c.settings[key]; said && first.value != value {
			errs = append(errs, yamlform.Position(d.Position).Errorf(
				"domain %s has another `%s` at %s: say it in one of them", yamlform.Quote(d.Name), key, where(first.at)))
		}
	}
	return append(append(errs, c.otherRegions(d)...), c.otherWays(d)...)
}

// otherRegions returns an error if one file of a domain has `regions` and another has not. Its value was given to the
// limits when their file was read, so each file of a domain has to set it.
func (c *claim) otherRegions(d *descriptor.DomainSpec) []*yamlform.Error {
	for _, first := range c.specs {
		if (first.Regions == nil) != (d.Regions == nil) {
			return []*yamlform.Error{yamlform.Position(d.Position).Errorf(
				"only one of the files of domain %s has `regions`, the other is at %s: say it in both, it holds for the limits "+
					"of its own file",
				yamlform.Quote(d.Name), where(first.Position))}
		}
	}
	return nil
}

func (l *ledger) add(d *descriptor.DomainSpec) {
	c := l.claims[d.Name]
	if c == nil {
		c = &claim{settings: make(map[string]setting)}
		if l.claims == nil {
			l.claims = make(map[string]*claim)
		}
		l.claims[d.Name] = c
		l.order = append(l.order, c)
	}
	c.specs = append(c.specs, d)
	for key, value := range descriptor.DomainFacts.Of(&d.DomainSettings) {
		if _, said := c.settings[key]; !said {
			c.settings[key] = setting{value, d.Position}
		}
	}
	if c.roots != nil {
		c.note(d)
	}
}

func (c *claim) note(d *descriptor.DomainSpec) {
	for i := range d.Children {
		n := &d.Children[i]
		identities(n, func(level descriptor.Level) { c.roots[level] = n.Position })
	}
}

// where returns a position as text, with the file's name.
func where(p descriptor.Position) string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// compile builds the tree of all admitted domains. The tree contains copies, because an unchanged file is also part of
// the next tree.
func (l *ledger) compile() (*descriptor.Tree, error) {
	domains := make([]descriptor.DomainSpec, 0, len(l.order))
	for _, c := range l.order {
		d := *c.specs[0]
		d.Copy = true
		d.Children = slices.Clip(d.Children) // appending must not write into the spec
		for _, s := range c.specs[1:] {
			d.Children = append(d.Children, s.Children...)
			d.DomainSettings = d.Or(&s.DomainSettings)
		}
		domains = append(domains, d)
	}
	return descriptor.Compile(domains, l.tree)
}
