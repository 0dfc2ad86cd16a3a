package descriptor

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Options are the settings of a tree that are not in its specs.
type Options struct {
	// CalendarMonths makes every fixed window of one month follow the calendar in UTC, unless it names a calendar itself.
	CalendarMonths bool

	PatternBytes int // how many bytes of a value the expressions see; 0 means defaultPatternBytes
}

// DomainSpec is one domain as its rule files define it.
type DomainSpec struct {
	Name     string
	Children []NodeSpec
	Position Position

	DomainSettings

	AcrossRegions bool // a limit has Regions

	// Copy makes the tree copy the rules, so that the spec stays unchanged and may be used again. The rules' limits must
	// already be compiled. The tree shares the limits that it does not need to change.
	Copy bool
}

// DomainSettings are the settings of a domain apart from its rules. DomainFacts has a row for each.
type DomainSettings struct {
	Admission       Admission
	OnError         OnError
	Headers         *Headers // nil for the server's setting
	RequestOverride RequestOverride
	Refunds         Refunds
	EnvoyDelay      bool          // answers tell Envoy to hold requests that a leaky bucket delays
	QuotaBuckets    *QuotaBuckets // nil for pairs by key, and buckets without a rule that let everything pass
	Regions         *Regions      // default for limits without regions; package config has copied it to them
}

// Or returns the settings, completed with those of another file of the domain where these are not set.
func (d DomainSettings) Or(other *DomainSettings) DomainSettings {
	to, from := reflect.ValueOf(&d).Elem(), reflect.ValueOf(other).Elem()
	for i := range to.NumField() {
		if to.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return d
}

// NodeSpec is one level of the rule tree as a rule file defines it.
type NodeSpec struct {
	Key string // may have a star: key and value together are then a wildcard for the entry's key and value
	// Without Kind, an empty Value means any value, and a star makes it a wildcard. With other kinds, Value is the
	// expression or the network
	Value    string
	Values   []string // values for MatchValues
	Rule     *Rule    // nil if the level has no rate limit. Compile fills in its Levels, Path and Index
	Children []NodeSpec
	Position Position

	Kind MatchKind // how values are matched; 0 if Key and Value determine it
	// all matching values share one counter; no effect on an exact value or on a key without a value
	ShareThreshold bool
	ValueToMetric  bool  // the metric's name contains the request's value instead of the rule's
	Condition      bool  // the value is matched, but is not part of the counter's key
	FoldCase       bool  // A to Z and a to z are one; Value and Values have lower case
	Group          Group // values that share a counter; needs a Kind or a Value that matches several
}

// Level returns the spec as one step of a rule's path.
func (n *NodeSpec) Level() Level {
	if n.Kind == MatchValues {
		return Level{Key: n.Key, Kind: MatchValues, Value: listText(n.Values)}
	}
	return Level{Key: n.Key, Kind: n.kind(), Value: n.Value}
}

func (n *NodeSpec) kind() MatchKind {
	switch {
	case n.Kind != 0:
		return n.Kind
	case HasWildcard(n.Key):
		return MatchWildcard
	case n.Value == "":
		return MatchAny
	case HasWildcard(n.Value):
		return MatchWildcard
	default:
		return MatchExact
	}
}

// maxListText is about how many bytes of a list of values a rule's path contains.
const maxListText = 64

// listText returns the values with commas between them. A long list is cut.
func listText(values []string) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
			if b.Len()+len(v) > maxListText {
				b.WriteString("...")
				break
			}
		}
		b.WriteString(v)
	}
	return b.String()
}

// Tree holds the compiled rules of all domains. It is immutable.
type Tree struct {
	Rules []*Rule // every rule, indexed by Rule.Index

	// Checksum identifies the meaning of the rules: trees whose rules mean the same have the same one, even if the rules
	// come from other files or from a server. It fits into the 53 bits of a float64. 0 means no domains.
	Checksum uint64

	domains map[string]*Domain
}

// Domain is one compiled domain.
type Domain struct {
	Name string
	DomainSettings
	Rules         int   // number of rules
	Overridable   bool  // a rule is overridable
	Usage         bool  // a rule has usage
	Reservable    bool  // a rule has limits that hold reservations
	RequestLimits *Rule // placeholder rule for the limits that requests carry, which have no rule

	edges edges
	rules []*Rule // indexed by node, the domain itself first; nil where a level has no rate limit
}

// node is the index in Domain.rules of one compiled level.
type node uint32

const (
	root   node = 0
	noNode node = ^node(0)
)

// Compile builds the tree. The specs' rules then belong to the tree, so the specs must not be used afterwards, unless
// Copy is set.
//
// It returns an error for specs that would make matching ambiguous: a domain that is defined twice, siblings with the
// same key and value, an empty domain or key, or two limits of a rule that would share one counter. Callers that can
// give a better message check for these first.
func Compile(domains []DomainSpec, o Options) (*Tree, error) {
	if o.PatternBytes <= 0 {
		o.PatternBytes = defaultPatternBytes
	}
	t := &Tree{domains: make(map[string]*Domain, len(domains))}
	var sums checksums
	for i := range domains {
		spec := &domains[i]
		if spec.Name == "" {
			return nil, fmt.Errorf("compile rules: a domain without a name in %s", spec.Position.File)
		}
		if t.domains[spec.Name] != nil {
			return nil, fmt.Errorf("compile rules: domain %q twice", spec.Name)
		}
		d := &Domain{Name: spec.Name, DomainSettings: spec.DomainSettings, RequestLimits: &Rule{Domain: spec.Name},
			edges: newEdges(o.PatternBytes), rules: make([]*Rule, 1)}
		before := len(t.Rules)
		sums.domain(d)
		c := compiler{tree: t, domain: d, copies: spec.Copy, months: o.CalendarMonths, sums: &sums}
		if err := c.children(root, spec.Children); err != nil {
			return nil, fmt.Errorf("compile domain %q: %w", spec.Name, err)
		}
		c.conditional.tagCounters()
		if err := d.edges.finish(); err != nil {
			return nil, fmt.Errorf("compile domain %q: %w", spec.Name, err)
		}
		d.Rules = len(t.Rules) - before
		t.domains[spec.Name] = d
	}
	t.Checksum = sums.sum >> 11
	return t, nil
}

// compiler walks through one domain. It keeps the path from the root to the current level.
type compiler struct {
	tree   *Tree
	domain *Domain
	copies bool
	months bool // Options.CalendarMonths
	levels []Level
	shared []shared
	metric []bool
	anyOf  struct{ shared, metric bool }
	sums   *checksums

	conditional conditionalRules
}

func (c *compiler) children(parent node, specs []NodeSpec) error {
	patterns := 0
	for i := range specs {
		if err := c.child(parent, &specs[i], patterns); err != nil {
			return err
		}
		if hasPattern(specs[i].kind()) {
			patterns++
		}
	}
	return nil
}

// child compiles one level. patterns is how many siblings before it have patterns.
func (c *compiler) child(parent node, spec *NodeSpec, patterns int) error {
	if spec.Key == "" {
		return fmt.Errorf("a descriptor without a key at line %d", spec.Position.Line)
	}
	child := node(len(c.domain.rules))
	if err := c.domain.edges.put(parent, spec, child); err != nil {
		return err
	}
	c.domain.rules = append(c.domain.rules, nil)

	level, pattern := spec.Level(), ""
	switch {
	case spec.Condition:
		pattern = conditionMark
	case spec.ShareThreshold:
		pattern = sharedBy(level, spec.Values)
	}
	group, err := newGrouping(spec)
	if err != nil {
		return err
	}
	if group != nil && !group.oneAddress() {
		pattern = groupedBy(level, spec.Values, spec.Group)
	}
	wasAny := c.anyOf
	c.levels = append(c.levels, level)
	c.shared = append(c.shared, shared{pattern, group})
	c.metric = append(c.metric, spec.ValueToMetric)
	c.anyOf.shared = c.anyOf.shared || pattern != "" || group != nil
	c.anyOf.metric = c.anyOf.metric || spec.ValueToMetric

	above := c.sums.level(spec, pattern, patterns)
	if spec.Rule != nil {
		c.domain.rules[child], err = c.rule(spec.Rule)
	}
	if err == nil {
		err = c.children(child, spec.Children)
	}
	c.sums.path = above

	c.levels = c.levels[:len(c.levels)-1]
	c.shared = c.shared[:len(c.shared)-1]
	c.metric = c.metric[:len(c.metric)-1]
	c.anyOf = wasAny
	return err
}

func (c *compiler) rule(r *Rule) (*Rule, error) {
	if c.copies {
		copied := *r
		r = &copied
	}
	if c.months {
		c.calendarMonths(r)
	}
	for i := range r.Limits {
		if r.Limits[i].Arithmetic.Length != 0 {
			continue // already compiled; another tree may be reading it
		}
		if err := r.Limits[i].Compile(); err != nil {
			return nil, fmt.Errorf("limit at line %d: %w", r.Position.Line, err)
		}
	}
	for i := range r.Limits {
		for j := range i {
			if r.Limits[i].SameCounter(&r.Limits[j]) {
				return nil, fmt.Errorf("rule at line %d: two limits of one algorithm and window", r.Position.Line)
			}
		}
	}
	r.Levels = append([]Level(nil), c.levels...)
	r.denies = r.denial()
	r.tagCounters()
	if c.anyOf.shared {
		r.shared = &sharedLevels{levels: slices.Clone(c.shared),
			grouped: slices.ContainsFunc(c.shared, func(s shared) bool { return s.group != nil })}
	}
	r.Needs = r.needs()
	c.conditional.add(r)
	if c.anyOf.metric {
		m := MetricLevels(slices.Clone(c.metric))
		r.MetricValues = &m
	}
	size := len(c.domain.Name)
	for _, l := range r.Levels {
		size += len(l.Key) + len(l.Value) + 2
	}
	var path strings.Builder
	path.Grow(size)
	path.WriteString(c.domain.Name)
	for _, l := range r.Levels {
		path.WriteByte('.')
		path.WriteString(l.Key)
		if l.Value != "" {
			path.WriteByte('_')
			path.WriteString(l.Value)
		}
	}
	r.Domain = c.domain.Name
	r.Path = path.String()
	r.Index = int32(len(c.tree.Rules))
	c.domain.Overridable = c.domain.Overridable || r.Overridable()
	c.domain.Usage = c.domain.Usage || r.Usage
	c.domain.Reservable = c.domain.Reservable || r.Reservable()
	c.sums.rule(r)
	c.tree.Rules = append(c.tree.Rules, r)
	return r, nil
}

// calendarMonths makes a rule's windows of one month follow the calendar. Limits that belong to a spec are copied
// first.
func (c *compiler) calendarMonths(r *Rule) {
	copied := !c.copies
	for i := range r.Limits {
		l := &r.Limits[i]
		month := l.Window
		if !l.Has(SettingCalendar) || l.FirstHit || !month.CalendarMonth() {
			continue
		}
		if !copied {
			r.Limits = slices.Clone(r.Limits)
			copied = true
		}
		r.Limits[i].Window = month
	}
}
