package simulate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// identity identifies a rule within its tree, and the same rule in another tree. A path is not enough, because it is
// ambiguous.
func identity(r *descriptor.Rule) string {
	var b strings.Builder
	b.WriteString(strconv.Quote(r.Domain))
	for _, l := range r.Levels {
		b.WriteString(strconv.Quote(l.Key) + strconv.Itoa(int(l.Kind)) + strconv.Quote(l.Value))
	}
	return b.String()
}

// byRule combines the counts of both engines. The rules that deny most come first.
func byRule(now, old *engine) (rows []Rule, unreached []string) {
	places := make(map[string]int)
	row := func(r *descriptor.Rule) *Rule {
		id := identity(r)
		i, ok := places[id]
		if !ok {
			i = len(rows)
			places[id] = i
			rows = append(rows, Rule{Rule: r.Path, Name: r.Name})
		}
		return &rows[i]
	}
	for i, r := range now.tree.Rules {
		c := &now.rules[i]
		if c.requests == 0 && old == nil {
			unreached = append(unreached, r.Path)
			continue
		}
		to := row(r)
		to.File, to.Line, to.Shadow = r.Position.File, r.Position.Line, r.Shadow
		to.New = c.reported(r)
		to.NewlyDenied = c.newly
	}
	if old != nil {
		for i, r := range old.tree.Rules {
			c := &old.rules[i]
			to := row(r)
			if to.New == nil {
				to.File, to.Line, to.Shadow = r.Position.File, r.Position.Line, r.Shadow
			}
			to.Old = c.reported(r)
			to.NewlyPassed = c.newly
		}
		rows = slices.DeleteFunc(rows, func(r Rule) bool {
			idle := (r.New == nil || r.New.Requests == 0) && (r.Old == nil || r.Old.Requests == 0)
			if idle && r.New != nil {
				unreached = append(unreached, r.Rule)
			}
			return idle
		})
	}
	slices.SortStableFunc(rows, func(a, b Rule) int {
		return cmp.Or(
			cmp.Compare(b.NewlyDenied, a.NewlyDenied),
			cmp.Compare(b.NewlyPassed, a.NewlyPassed),
			cmp.Compare(b.denied(), a.denied()),
			cmp.Compare(b.notEnforced(), a.notEnforced()),
			cmp.Compare(b.requests(), a.requests()),
			strings.Compare(a.Rule, b.Rule),
		)
	})
	slices.Sort(unreached)
	return rows, unreached
}

// reported returns the report's counts of a rule in one of the directories.
func (c *ruleCount) reported(r *descriptor.Rule) *RuleCount {
	out := &RuleCount{Requests: c.requests, Denied: c.denied, NotEnforced: c.notEnforced}
	for i := range r.Limits {
		l := &r.Limits[i]
		reported := Limit{Name: l.Name, Limit: limitText(l), Burst: burstText(l)}
		if c.limits != nil {
			reported.Over = c.limits[i]
		}
		out.Limits = append(out.Limits, reported)
	}
	return out
}

// burstText returns the burst of a bucket in words; empty for limits without a burst.
func burstText(l *descriptor.Limit) string {
	switch {
	case !l.Has(descriptor.SettingBurst):
		return ""
	case l.Algorithm == descriptor.LeakyBucket:
		return strconv.FormatUint(l.Burst, 10) + " may wait"
	default:
		return strconv.FormatUint(l.Burst, 10)
	}
}

func limitText(l *descriptor.Limit) string {
	if l.Algorithm == descriptor.Concurrency {
		return l.Words()
	}
	text := strconv.FormatUint(l.Requests, 10) + " per "
	if l.Window.Multiplier > 1 {
		return text + strconv.FormatUint(uint64(l.Window.Multiplier), 10) + " " + l.Window.Unit.String() + "s" +
			l.EnforcementWords() + l.PenaltyWords()
	}
	return text + l.Window.Unit.String() + l.EnforcementWords() + l.PenaltyWords()
}
