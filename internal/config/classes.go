package config

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// classesForm is the map of `classes`.
var classesForm = yamlform.NewForm("classes", "`classes`", []yamlform.Field[descriptor.Classes]{
	{Key: yamlform.Key{Name: "by", Type: yamlform.Type{Kind: yamlform.Text}, Required: true, Extension: true,
		Doc: "the key of the entry with the class, on this level or above, with `condition: true`"},
		Read: func(c *descriptor.Classes, v yamlform.Value) { c.Key, _ = v.Text() }},
	{Key: yamlform.Key{Name: "guaranteed_percent", Type: yamlform.Type{Kind: yamlform.Table, Most: 100}, Required: true,
		Extension: true,
		Doc: "the percentage for each class, by the entry's value. `\"*\"`: all other values together. At most 5 " +
			"classes, and 100 in total"},
		Read: readGuarantees},
}...)

// readClasses reads `classes`. It returns nil if there are errors.
func readClasses(v yamlform.Value) *descriptor.Classes {
	c := descriptor.Classes{Position: position(v)}
	read, unknown := yamlform.Read(v, classesForm, &c)
	keys := v.Keys()
	switch {
	case !read || unknown:
	case !keys["by"].Given():
		v.Errorf("`classes` without `by`: write the key of the entry whose value is the class, such as `by: priority`")
	case !keys["guaranteed_percent"].Given():
		v.Errorf("`classes` without `guaranteed_percent`: write what each class is guaranteed, such as " +
			"`guaranteed_percent: {critical: 20}`")
	case c.Key == "":
		keys["by"].Errorf("`by` is empty: write the key of the entry whose value is the class")
	case len(c.Of) > 0:
		return &c
	}
	return nil
}

// readGuarantees reads the percentage guaranteed to each class. After an error it leaves the list of classes empty.
func readGuarantees(c *descriptor.Classes, v yamlform.Value) {
	switch {
	case !v.IsMap():
		v.Errorf("`guaranteed_percent` must be a map, not %s: write `{critical: 20}`", v.What())
		return
	case v.Len() == 0:
		v.Errorf("`guaranteed_percent` is empty: write what a class is guaranteed, such as `{critical: 20}`, or leave " +
			"out `classes`")
		return
	}
	sum, asked := uint64(0), 0
	for name, percent := range v.WeightsByText() {
		c.Of = append(c.Of, descriptor.Class{Name: name, Percent: uint8(percent)})
		sum += percent
	}
	for range v.Pairs() {
		asked++
	}
	switch {
	case len(c.Of) < asked: // an error is recorded
	case len(c.Of) > descriptor.MaxClasses:
		v.Errorf("`guaranteed_percent` has %d classes: %d are the most; leave out those that are guaranteed nothing, or "+
			"combine classes", len(c.Of), descriptor.MaxClasses)
	case sum > 100:
		v.Errorf("`guaranteed_percent` is %d in all: together the classes cannot be guaranteed more than the limit, "+
			"which is 100", sum)
	default:
		c.Sort()
		return
	}
	c.Of = nil
}

// share makes the limit one that classes share, if it has `classes`. It returns false if it cannot be.
func (l *limitReading) share() bool {
	if l.classes == nil {
		return true
	}
	reject := func(key, why string) bool {
		l.at(key).Errorf("%s", why)
		return false
	}
	switch {
	case l.limit.FirstHit:
		return reject("align",
			"`classes` and `align: first_hit` cannot be combined: guarantees need windows that end on the clock; leave out "+
				"`align`")
	case l.limit.CountDenied == descriptor.DeniedCount:
		return reject("count_denied",
			"`classes` and `count_denied: true` cannot be combined: denied hits of one class would use up another one's "+
				"guarantee; leave out `count_denied`")
	case l.limit.Lease:
		return reject("lease",
			"`classes` and `lease: true` cannot be combined: a permit that is taken in advance belongs to one class; leave "+
				"out `lease`")
	case l.limit.Penalty != nil:
		return reject("penalty",
			"`classes` and `penalty` cannot be combined: the penalty of one class would deny the others, which share its "+
				"counter; leave out one of them")
	}
	if err := l.limit.Share(l.classes); err != nil {
		l.cannotCount(l.at("classes"), err)
		return false
	}
	return true
}

// setClasses gives the limits of a rule their classes, if there are any.
func (r *ruleReader) setClasses(rule *descriptor.Rule, classes []*descriptor.Classes) {
	if slices.ContainsFunc(classes, func(c *descriptor.Classes) bool { return c != nil }) {
		rule.SetClasses(&descriptor.Sharing{Of: classes})
		r.byEntry = true
	}
}

// placeClasses finds the levels of a rule's classes. Descriptors that inherit them have different levels.
func (r *ruleReader) placeClasses(rule *descriptor.Rule, path []*descriptor.NodeSpec) {
	all := slices.Clone(rule.ByEntry.Classes.Of)
	for i, c := range all {
		if c == nil {
			continue
		}
		level, ok := r.levelOf("classes", c.Key, yamlform.Position(c.Position), path)
		if !ok {
			continue
		}
		placed := *c
		placed.Level, placed.Fold = level, path[level].FoldCase
		r.checkClasses(&placed, path[level])
		all[i], rule.Limits[i].Classes = &placed, placed.Parts()
	}
	rule.SetClasses(&descriptor.Sharing{Of: all})
}

// checkClasses rejects classes that do not share a counter, and classes that no request can be in.
func (r *ruleReader) checkClasses(c *descriptor.Classes, spec *descriptor.NodeSpec) {
	at, key := yamlform.Position(c.Position), yamlform.Quote(c.Key)
	if !spec.Condition && !spec.ShareThreshold {
		r.ErrorAt(at,
			"`classes` by %s: each class would have a counter of its own, and nothing to share; write `condition: true` in "+
				"the descriptor %s",
			key, yamlform.Position(spec.Position).Near())
	}
	if c.Fold {
		c.Of = slices.Clone(c.Of)
		for i := range c.Of {
			c.Of[i].Name = descriptor.Fold(c.Of[i].Name)
		}
		c.Sort()
		for i := 1; i < len(c.Of); i++ {
			if c.Of[i].Name == c.Of[i-1].Name {
				r.ErrorAt(at,
					"`classes` by %s: %s is there twice, in different cases of letters, and `fold_case` makes one of them: "+
						"write it once", key, yamlform.Quote(c.Of[i].Name))
			}
		}
	}
	var values []string
	switch spec.Level().Kind {
	case descriptor.MatchExact:
		values = []string{spec.Value}
	case descriptor.MatchValues:
		values = spec.Values
	default:
		return
	}
	for i := range c.Of {
		if name := c.Of[i].Name; name != otherValues && !slices.Contains(values, name) {
			r.ErrorAt(at, "`classes` by %s: the rule does not match the class %s; it matches %s", key, yamlform.Quote(name),
				yamlform.List(values, "and"))
		}
	}
}
