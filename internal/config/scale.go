package config

import (
	"errors"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// scaleForm is the map of `scale`.
var scaleForm = yamlform.NewForm("scale", "`scale`", []yamlform.Field[descriptor.Scale]{
	{Key: yamlform.Key{Name: "by", Type: yamlform.Type{Kind: yamlform.Text}, Required: true, Extension: true,
		Doc: "the key of the entry with the number, on this level or above, with `condition: true`"},
		Read: func(s *descriptor.Scale, v yamlform.Value) { s.Key, _ = v.Text() }},
	{Key: yamlform.Key{Name: "max", Type: yamlform.Uint53(1), Required: true, Extension: true,
		Doc: "the number that larger ones count as"},
		Read: func(s *descriptor.Scale, v yamlform.Value) { s.Max, _ = v.Number() }},
}...)

// readScale reads a `scale`. It returns nil if there are errors.
func readScale(v yamlform.Value) *descriptor.Scale {
	s := descriptor.Scale{Position: position(v)}
	read, unknown := yamlform.Read(v, scaleForm, &s)
	keys := v.Keys()
	switch {
	case !read || unknown:
	case !keys["by"].Given():
		v.Errorf("`scale` without `by`: write the key of the entry with the number, such as `by: users`")
	case !keys["max"].Given():
		v.Errorf("`scale` without `max`: write the largest number that counts, or customers choose their limits")
	case s.Key == "":
		keys["by"].Errorf("`by` is empty: write the key of the entry with the number")
	case s.Max > 0:
		return &s
	}
	return nil
}

// readRequests reads a number of requests per unit. Who writes a product there means a scale.
func readRequests(l *limitReading, v yamlform.Value) (ok bool) {
	if strings.Contains(v.Written(), "*") {
		v.Errorf("`requests_per_unit` must be a whole number, not %s: to multiply it by the number in an entry, write "+
			"`requests_per_unit: 200` and `scale: {by: users, max: 10000}`",
			v.What())
		return false
	}
	l.limit.Requests, ok = v.Number()
	return ok
}

// setScales gives the limits of a rule their scales, if there are any.
func (r *ruleReader) setScales(rule *descriptor.Rule, scales []*descriptor.Scale) {
	if slices.ContainsFunc(scales, func(s *descriptor.Scale) bool { return s != nil }) {
		rule.SetScales(&descriptor.Scales{Of: scales})
		r.byEntry = true
	}
}

// checkScale reports whether the limit can be counted with each number that its `scale` may have. It has its
// arithmetic.
func (l *limitReading) checkScale() bool {
	if l.scale == nil {
		return true
	}
	at := l.at("scale")
	if l.limit.Lease {
		at.Errorf("`scale` and `lease: true` cannot be combined: " +
			"permits are taken in advance for one number of requests; leave out `lease`")
		return false
	}
	if err := l.limit.Scalable(l.scale.Max); err != nil {
		reason := err.Error()
		if wrong := (*descriptor.LimitError)(nil); errors.As(err, &wrong) {
			reason = wrong.Reason
		}
		at.Errorf("`scale` with a `max` of %d: %s", l.scale.Max, reason)
		return false
	}
	return true
}

// placeScale finds the level of a scale. It returns nil if no level can have the number.
func (r *ruleReader) placeScale(s *descriptor.Scale, path []*descriptor.NodeSpec) *descriptor.Scale {
	at, key := yamlform.Position(s.Position), yamlform.Quote(s.Key)
	level, ok := r.levelOf("scale", s.Key, at, path)
	if !ok {
		return nil
	}
	placed := *s
	placed.Level = level
	spec := path[level]
	values := spec.Values
	if spec.Level().Kind == descriptor.MatchExact {
		values = []string{spec.Value}
	}
	noNumber := func(v string) bool { return strings.Trim(v, "0123456789") != "" }
	switch i := slices.IndexFunc(values, noNumber); {
	case i >= 0:
		r.ErrorAt(at, "`scale` by %s: the rule matches the value %s, which is not a number", key, yamlform.Quote(values[i]))
	case !spec.Condition && !spec.ShareThreshold:
		r.ErrorAt(at,
			"`scale` by %s: each number would have a counter of its own, so a customer with another number would start from "+
				"zero; write `condition: true` in the descriptor %s",
			key, yamlform.Position(spec.Position).Near())
	}
	return &placed
}
