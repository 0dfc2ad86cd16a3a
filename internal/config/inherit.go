package config

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// maxInherited bounds the copies of descriptors and limits that one file asks for. A descriptor that inherits may be
// below another one, so a short file can ask for very many.
const maxInherited = 1_000_000

// inherit notes that a descriptor inherits. complete does it when the descriptor's siblings, and all that is above
// them, are known.
func (r *ruleReader) inherit(d *descriptorReading) {
	if d.spec.Level().Kind == descriptor.MatchAny {
		d.inherit.Errorf("`inherit` needs a `value`: it takes from the descriptor with the same key and no value, and " +
			"this is one")
		return
	}
	if d.spec.Kind == 0 && descriptor.HasWildcard(d.spec.Key) {
		d.inherit.Errorf("`inherit` cannot be used with a * in `key`: it needs one key to inherit from")
		return
	}
	if r.inheriting == nil {
		r.inheriting = make(map[descriptor.Position]yamlform.Value)
	}
	r.inheriting[d.spec.Position] = d.inherit
}

// finish does the steps that need all descriptors of a domain.
func (r *ruleReader) finish(d *descriptor.DomainSpec) {
	r.complete(d.Children)
	if r.byEntry {
		r.checkPaths(nil, d.Children)
	}
	if r.regions || d.Regions != nil {
		r.applyRegions(d)
	}
	r.rejectOtherWays(d)
}

// complete copies, to each descriptor that inherits, the settings that it does not set itself. It works from the top
// down, so a descriptor may inherit from one that is inherited itself.
func (r *ruleReader) complete(siblings []descriptor.NodeSpec) {
	if len(r.inheriting) == 0 {
		return
	}
	var alone map[string]int // indexes of the descriptors without a value, by key
	for i := range siblings {
		v, inherits := r.inheriting[siblings[i].Position]
		if !inherits || r.inherited > maxInherited {
			continue
		}
		if alone == nil {
			alone = make(map[string]int)
			for j := range siblings {
				if siblings[j].Level().Kind == descriptor.MatchAny {
					alone[siblings[j].Key] = j
				}
			}
		}
		from, found := alone[siblings[i].Key]
		if !found {
			v.Errorf("`inherit`: there is no descriptor next to this one with the key %s and no value",
				yamlform.Quote(siblings[i].Key))
			continue
		}
		r.inheritFrom(&siblings[i], &siblings[from], inheritance{asked: v})
	}
	for i := range siblings {
		if r.inherited <= maxInherited {
			r.complete(siblings[i].Children)
		}
	}
}

// inheritance is the context of one descriptor with `inherit: true`, on the way down from it.
type inheritance struct {
	asked yamlform.Value // `inherit`

	// Customers share the inherited counters: a level above has `group: $...`, or `share_threshold`.
	captured, shared bool
}

// inheritFrom copies to a descriptor the settings that another one has and it lacks.
func (r *ruleReader) inheritFrom(to, from *descriptor.NodeSpec, h inheritance) {
	if !sameCounting(to, from, h.asked) {
		return
	}
	h.captured = h.captured || to.Group.Capture > 0
	h.shared = h.shared || to.ShareThreshold
	switch {
	case to.Rule == nil:
		to.Rule = r.copyOf(from.Rule, h)
		r.rejectReservedKeys(to, h)
	case from.Rule != nil && from.Rule.Reservable() && !to.Rule.Reservable() && !r.unreserved[to.Position] &&
		canReserve(to.Rule):
		reserve(to.Rule, from.Rule.Limits[0].Reservations)
		r.rejectReservedKeys(to, h)
	}
	if from.Rule != nil && to.Rule != nil && to.Rule.HitCost() == nil && notCounted(to.Rule) == "" {
		to.Rule.SetHitCost(from.Rule.HitCost())
	}
	// indexes of to's descriptors by level; a value in several lists has the last one
	own := make(map[descriptor.Level]int)
	for i := range to.Children {
		identities(&to.Children[i], func(level descriptor.Level) { own[level] = i })
	}
	for i := range from.Children {
		child := &from.Children[i]
		same, some, value := -1, false, ""
		identities(child, func(level descriptor.Level) {
			if at, ok := own[level]; ok {
				same, some, value = at, true, level.Value
			}
		})
		switch {
		case !some:
			added := r.copyTree(child, h)
			if r.inherited > maxInherited {
				return
			}
			to.Children = append(to.Children, added)
		case sameValues(to.Children[same].Values, child.Values):
			// it has not done so yet: complete works from the top down
			if v, inherits := r.inheriting[child.Position]; inherits {
				r.inheriting[to.Children[same].Position] = v
			}
			r.inheritFrom(&to.Children[same], child, h)
		default:
			h.asked.Errorf("`inherit`: %s is among the `values` %s, which differ from those it is inherited with, %s: write "+
				"the same list, or a descriptor for each value",
				yamlform.Quote(value), yamlform.Position(to.Children[same].Position).Near(),
				yamlform.Position(child.Position).Near())
			return
		}
	}
}

// sameCounting reports whether a descriptor groups values, and leaves its value out of the counter's key, like the one
// that it inherits from. Otherwise one customer would have several counters under the inherited limits.
func sameCounting(to, from *descriptor.NodeSpec, asked yamlform.Value) bool {
	kind := to.Level().Kind
	one := kind == descriptor.MatchExact || kind == descriptor.MatchValues // each value is named, so there are few
	where := func(s *descriptor.NodeSpec) string { return yamlform.Position(s.Position).Near() }
	switch {
	case from.FoldCase && !to.FoldCase && kind != descriptor.MatchCIDR:
		asked.Errorf("`inherit`: the descriptor that is inherited from, %s, has `fold_case: true`, and the one %s does "+
			"not: write it there too, or the case of letters matters only in this value",
			where(from), where(to))
	case from.Group != (descriptor.Group{}) && to.Group == (descriptor.Group{}) && !one && !to.ShareThreshold &&
		!to.Condition:
		asked.Errorf("`inherit`: the descriptor that is inherited from, %s, has `group: %s`, and the one %s has no "+
			"`group`: write one there too, or each value of a group has a counter of its own",
			where(from), from.Group, where(to))
	case from.Condition && !to.Condition:
		asked.Errorf("`inherit`: the descriptor that is inherited from, %s, has `condition: true`, and the one %s does "+
			"not: write it there too, or a customer for whom the condition changes starts from zero",
			where(from), where(to))
	default:
		return true
	}
	return false
}

// rejectReservedKeys rejects levels below a descriptor whose keys name a reservation, now that the descriptor has
// reservations.
func (r *ruleReader) rejectReservedKeys(s *descriptor.NodeSpec, h inheritance) {
	if s.Rule == nil || !s.Rule.Reservable() {
		return
	}
	for i := range s.Children {
		if descriptor.ReservationEntry(s.Children[i].Key) {
			h.asked.Errorf("`inherit`: the `reservations` that the descriptor takes, and the key `%s` %s below it: there it "+
				"names a reservation and is not matched; use another key",
				s.Children[i].Key, yamlform.Position(s.Children[i].Position).Near())
		}
	}
}

// copyTree copies a descriptor and all below it: the descriptors that the copies belong to are completed each in its
// own way.
func (r *ruleReader) copyTree(s *descriptor.NodeSpec, h inheritance) descriptor.NodeSpec {
	c := *s
	c.Rule = r.copyOf(s.Rule, h)
	c.Children = make([]descriptor.NodeSpec, 0, len(s.Children))
	r.countInherited(1, h.asked)
	if s.Kind == descriptor.MatchRegex {
		r.expression(h.asked, "`inherit`", s.Value)
	}
	for i := range s.Children {
		if r.inherited > maxInherited {
			break
		}
		c.Children = append(c.Children, r.copyTree(&s.Children[i], h))
	}
	return c
}

// copyOf returns a copy of a rule for the tree, which gives each rule a separate path.
func (r *ruleReader) copyOf(rule *descriptor.Rule, h inheritance) *descriptor.Rule {
	if rule == nil {
		return nil
	}
	rejectPerCustomer(rule, h)
	copies := len(rule.Limits)
	if cost := rule.HitCost(); cost != nil {
		for i := range cost.Tables {
			copies += len(cost.Tables[i].Values) // each rule has separate tables, because its levels may fold values
		}
	}
	r.countInherited(copies, h.asked)
	c := *rule
	c.Limits = slices.Clone(rule.Limits)
	r.rules++
	return &c
}

// rejectPerCustomer rejects a rule about the counters of one customer, where customers share counters.
func rejectPerCustomer(rule *descriptor.Rule, h inheritance) {
	for _, c := range [...]struct {
		bad  bool
		text string
	}{
		{h.captured && rule.Overridable(), capturedAndOverridable}, {h.captured && rule.Usage, capturedAndUsage},
		{h.shared && rule.Overridable(), sharedAndOverridable}, {h.shared && rule.Usage, sharedAndUsage},
	} {
		if c.bad {
			h.asked.Errorf("`inherit` takes the limit %s: %s", yamlform.Position(rule.Position).Near(), c.text)
			return
		}
	}
}

// countInherited counts copies. The first one above the bound is an error.
func (r *ruleReader) countInherited(n int, v yamlform.Value) {
	within := r.inherited <= maxInherited
	if r.inherited += n; within && r.inherited > maxInherited {
		v.Errorf("`inherit` makes more than %d descriptors, limits and costs of those in this file: let fewer "+
			"descriptors inherit", maxInherited)
	}
}

// sameValues reports whether two lists have the same values.
func sameValues(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
