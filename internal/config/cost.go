package config

import (
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Bounds of costs.
const (
	maxWeight     = descriptor.MaxWeight / descriptor.WeightOne
	maxWeightName = 64 // bytes
)

// otherValues is the row of a table for the values that it does not name. No named value is written like this.
const otherValues = "*"

// costReading is the `cost` of a descriptor while it is being read.
type costReading struct {
	given   yamlform.Value
	amounts descriptor.Cost // cost of reservations
	hits    *descriptor.HitCost
}

// readCost reads the cost of a hit: one number, weights of amounts, or tables by the values of entries.
func (d *descriptorReading) readCost(v yamlform.Value) {
	c := &d.cost
	c.given = v
	switch {
	case !v.IsMap():
		if factor, ok := v.Weight(); ok {
			c.hits = &descriptor.HitCost{Factor: factor}
			return
		}
		or := ""
		if v.Written() == "0" {
			or = "; for requests that cost nothing write a descriptor with `rate_limit: {unlimited: true}`"
		}
		v.Errorf("`cost` must be a whole number from 1 to %d, or a map such as `{model: {large: 10, \"*\": 1}}`, not %s%s",
			maxWeight, v.What(), or)
	case v.Len() == 0:
		v.Errorf("`cost` is empty: write a number, such as `cost: 5`, or a map, such as `cost: {model: {large: 10, " +
			"\"*\": 1}}`")
	default:
		c.readAmounts(v)
		c.readTables(d.r, v)
	}
}

// readAmounts reads the weights of amounts.
func (c *costReading) readAmounts(v yamlform.Value) {
	free := true
	for name, weight := range v.MillionthsByText() {
		switch {
		case name == "" || len(name) > maxWeightName:
			v.Errorf("%s in `cost`: a name has 1 to %d bytes", yamlform.Quote(name), maxWeightName)
			return
		case len(c.amounts) == descriptor.MaxWeights:
			v.Errorf("`cost` has more than %d names", descriptor.MaxWeights)
			return
		}
		c.amounts = append(c.amounts, descriptor.Weight{Name: name, Millionths: weight})
		free = free && weight == 0
	}
	if free && len(c.amounts) > 0 {
		v.Errorf("all weights of `cost` are 0: nothing would ever be used; give one of them a weight, or leave out " +
			"`reservations`")
	}
	slices.SortFunc(c.amounts, func(a, b descriptor.Weight) int { return strings.Compare(a.Name, b.Name) })
}

// readTables reads the tables by values of entries. Which level an entry belongs to is known when all levels above are
// read.
func (c *costReading) readTables(r *ruleReader, v yamlform.Value) {
	for key, table := range v.TablesByText() {
		t := descriptor.CostTable{Key: key, Values: make(map[string]uint64), Position: position(table)}
		if table.Len() == 0 {
			table.Errorf("`cost` by %s is empty: write what a hit counts for, such as `{large: 10, \"*\": 1}`",
				yamlform.Quote(key))
			continue
		}
		for value, cost := range table.WeightsByText() {
			if value == otherValues {
				t.Other = cost
			} else {
				t.Values[value] = cost
			}
		}
		if len(t.Values) > descriptor.MaxCostValues {
			table.Errorf("`cost` by %s has %d values: %d are the most", yamlform.Quote(key), len(t.Values),
				descriptor.MaxCostValues)
			continue
		}
		if c.hits == nil {
			c.hits = &descriptor.HitCost{Factor: 1}
		}
		c.hits.Tables = append(c.hits.Tables, t)
		r.byEntry = true
	}
}

// checkCost rejects a `cost` where nothing is counted, and weights of amounts without `reservations`.
func (d *descriptorReading) checkCost() {
	c := &d.cost
	if !c.given.Given() {
		return
	}
	if len(c.amounts) > 0 && !d.reserve.given.Given() {
		c.given.Errorf("`cost` of %s needs `reservations`: it is about the named amounts of a reservation; write "+
			"`reservations: true` next to it, or a table by the value of an entry, such as `{model: {large: 10, \"*\": 1}}`",
			yamlform.Quote(c.amounts[0].Name))
	}
	if c.hits != nil && d.rule == nil && d.inherit.Given() {
		c.given.Errorf("`cost` and `inherit`, and no limit next to them: what is inherited keeps its own cost; write the " +
			"`rate_limit` here too")
	}
	if d.rule == nil || c.hits == nil {
		return
	}
	if why := notCounted(d.rule); why != "" {
		c.given.Errorf("`cost` and %s", why)
	}
	d.rule.SetHitCost(c.hits)
}

// notCounted returns why a hit cannot count for more than one under a rule, or nothing if it can.
func notCounted(rule *descriptor.Rule) string {
	switch {
	case rule.Unlimited:
		return "`unlimited: true` cannot be combined: nothing is counted; leave it out"
	case slices.ContainsFunc(rule.Limits, func(l descriptor.Limit) bool { return l.Algorithm == descriptor.Concurrency }):
		return "`algorithm: concurrency` cannot be combined: a request takes one place, whatever its cost; write this " +
			"limit in its own descriptor"
	default:
		return ""
	}
}

// checkPaths finds, for each table and each scale by an entry, the level of the entry in the path of its rule. path has
// the levels above.
func (r *ruleReader) checkPaths(path []*descriptor.NodeSpec, specs []descriptor.NodeSpec) {
	for i := range specs {
		s := &specs[i]
		here := append(path, s) //nolint:gocritic // siblings take turns with this element
		if s.Rule != nil && s.Rule.HitCost() != nil && len(s.Rule.HitCost().Tables) > 0 {
			c := descriptor.HitCost{Factor: s.Rule.HitCost().Factor, Tables: slices.Clone(s.Rule.HitCost().Tables)}
			for j := range c.Tables {
				r.placeTable(&c.Tables[j], here)
			}
			s.Rule.SetHitCost(&c) // descriptors that inherit it have different levels
		}
		if s.Rule != nil && s.Rule.Scales() != nil {
			scales := slices.Clone(s.Rule.Scales().Of)
			for j := range scales {
				if scales[j] != nil {
					scales[j] = r.placeScale(scales[j], here)
				}
			}
			s.Rule.SetScales(&descriptor.Scales{Of: scales})
		}
		if s.Rule != nil && s.Rule.ByEntry != nil && s.Rule.ByEntry.Classes != nil {
			r.placeClasses(s.Rule, here)
		}
		r.checkPaths(here, s.Children)
	}
}

// placeTable finds the level of a table.
func (r *ruleReader) placeTable(t *descriptor.CostTable, path []*descriptor.NodeSpec) {
	key, at := yamlform.Quote(t.Key), yamlform.Position(t.Position)
	level, ok := r.levelOf("cost", t.Key, at, path)
	if !ok {
		return
	}
	t.Level = level
	s := path[level]
	t.Fold = s.FoldCase
	if t.Fold {
		folded := make(map[string]uint64, len(t.Values))
		for v, cost := range t.Values {
			if before, twice := folded[descriptor.Fold(v)]; twice && before != cost {
				r.ErrorAt(at,
					"`cost` by %s: %s is there twice, in different cases of letters, and `fold_case` makes one of them: write it once",
					key, yamlform.Quote(v))
			}
			folded[descriptor.Fold(v)] = cost
		}
		t.Values = folded
	}
	if t.Other > 0 {
		return
	}
	missing := "others"
	switch s.Level().Kind {
	case descriptor.MatchExact:
		if missing = yamlform.Quote(s.Value); t.Values[s.Value] > 0 {
			return
		}
	case descriptor.MatchValues:
		i := slices.IndexFunc(s.Values, func(v string) bool { return t.Values[v] == 0 })
		if i < 0 {
			return
		}
		missing = yamlform.Quote(s.Values[i])
	}
	r.ErrorAt(at,
		"`cost` by %s does not say what a hit counts for if the value is none of these, and the rule matches %s: write it, "+
			"such as `\"*\": 1`", key, missing)
}

// levelOf returns the index of the level with a key in the path of a rule. Errors name the rule language's key, such as
// "scale", that refers to the level.
func (r *ruleReader) levelOf(what, key string, at yamlform.Position, path []*descriptor.NodeSpec) (level int, ok bool) {
	level = -1
	keys := make([]string, len(path))
	for i, s := range path {
		keys[i] = s.Key
		if s.Key != key {
			continue
		}
		if level >= 0 {
			r.ErrorAt(at, "`%s` by %s: two levels of this rule have this key; give one of them another key", what,
				yamlform.Quote(key))
			return 0, false
		}
		level = i
	}
	if level < 0 {
		r.ErrorAt(at, "`%s` by %s: no level of this rule has this key; it has %s", what, yamlform.Quote(key),
			yamlform.List(keys, "and"))
	}
	return level, level >= 0
}
