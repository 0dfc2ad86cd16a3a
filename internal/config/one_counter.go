package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A level with `condition: true` is not part of a counter's key, so rules with different conditions can share counters:
// two plans of one customer. They may differ in numbers, costs and names. Settings that decide how a counter is stored
// must be equal: stores, leases and regions identify a counter by its key, whichever of its rules has used it.

// conditional is a limit of a rule that has a condition.
type conditional struct {
	rule  *descriptor.Rule
	limit int
	shape string // positions of the conditions
	keys  string // keys of the levels
}

// conditionals returns the limits of a domain whose counters other rules of the domain may use, and whether a level has
// a key with a star.
func conditionals(d *descriptor.DomainSpec) (all []conditional, starred bool) {
	var path []*descriptor.NodeSpec
	var below func(specs []descriptor.NodeSpec, condition bool)
	below = func(specs []descriptor.NodeSpec, condition bool) {
		for i := range specs {
			n := &specs[i]
			path = append(path, n)
			if n.Rule != nil && (condition || n.Condition) {
				var shape, keys strings.Builder
				for _, level := range path {
					mark := byte('.')
					if level.Condition {
						mark = '~'
					}
					shape.WriteByte(mark)
					keys.WriteString("\x00" + level.Key)
					starred = starred || descriptor.HasWildcard(level.Key)
				}
				for k := range n.Rule.Limits {
					all = append(all, conditional{n.Rule, k, shape.String(), keys.String()})
				}
			}
			below(n.Children, condition || n.Condition)
			path = path[:len(path)-1]
		}
	}
	below(d.Children, false)
	return all, starred
}

// otherWays returns an error for each rule of a domain that shares a counter with an earlier rule of it and keeps the
// counter in another way. A key with a star can match any other key.
func otherWays(all []conditional, starred bool) (errs []*yamlform.Error) {
	first := make(map[string]*conditional)
	for i := range all {
		c := &all[i]
		l := &c.rule.Limits[c.limit]
		id := c.shape + "\x00" + l.Tag()
		if !starred {
			id += c.keys
		}
		other := first[id]
		if other == nil {
			first[id] = c
			continue
		}
		for _, way := range ways {
			if here, there := way.of(c), way.of(other); here != there {
				errs = append(errs, yamlform.Position(c.rule.Position).Errorf(
					"this rule and the one at %s use the same counters, because `condition: true` leaves a level out of them, but "+
						"they have different `%s`: give both the same, or remove `condition`, so that each has its own counters",
					where(other.rule.Position), way.key))
				break
			}
		}
	}
	return errs
}

// ways are the keys that decide how a counter is kept.
var ways = []struct {
	key string
	of  func(*conditional) string
}{
	{"lease", func(c *conditional) string { return fmt.Sprint(c.rule.Limits[c.limit].Lease) }},
	{"reservations", func(c *conditional) string { return c.rule.Limits[c.limit].Reservations.String() }},
	{"penalty", func(c *conditional) string { return c.rule.Limits[c.limit].PenaltyText() }},
	{"regions", func(c *conditional) string { return c.rule.Limits[c.limit].Regions.String() }},
	{"classes", func(c *conditional) string {
		if classes := c.rule.ClassesOf(c.limit); classes != nil {
			return fmt.Sprint(classes.Parts())
		}
		return ""
	}},
}

// rejectOtherWays rejects rules of one domain that share counters and keep them in different ways.
func (r *ruleReader) rejectOtherWays(d *descriptor.DomainSpec) {
	for _, e := range otherWays(conditionals(d)) {
		r.ErrorAt(yamlform.Position{File: e.File, Line: e.Line, Col: e.Col}, "%s", e.Msg)
	}
}

// otherWays returns an error for each rule of another file that shares a counter with a rule of the domain and keeps it
// in another way.
func (c *claim) otherWays(d *descriptor.DomainSpec) []*yamlform.Error {
	here, starred := conditionals(d)
	if len(here) == 0 {
		return nil
	}
	var all []conditional
	for _, s := range c.specs {
		more, star := conditionals(s)
		all, starred = append(all, more...), starred || star
	}
	return slices.DeleteFunc(otherWays(append(all, here...), starred),
		func(e *yamlform.Error) bool { return e.File != d.Position.File })
}
