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
		b.WriteString(strconv.Quote(l.Key))
		b.WriteString(strconv.Itoa(int(l.Kind)))
		b.WriteString(strconv.Quote(l.Value))
	}
	return b.String()
}

// byRule combines the counts of both engines. The rules that refuse most come first.
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
		to.New = c.reported(r, now)
		to.NewlyRefused = c.newly
	}
	if old != nil {
		for i, r := range old.tree.Rules {
			c := &old.rules[i]
			to := row(r)
			if to.New == nil {
				to.File, to.Line, to.Shadow = r.Position.File, r.Position.Line, r.Shadow
			}
			to.Old = c.reported(r, old)
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
			cmp.Compare(b.NewlyRefused, a.NewlyRefused),
			cmp.Compare(b.NewlyPassed, a.NewlyPassed),
			cmp.Compare(b.refused(), a.refused()),
			cmp.Compare(b.notEnforced(), a.notEnforced()),
			cmp.Compare(b.requests(), a.requests()),
			strings.Compare(a.Rule, b.Rule),
		)
	})
	slices.Sort(unreached)
	return rows, unreached
}

// reported returns the report's counts of a rule in one of the folders.
func (c *ruleCount) reported(r *descriptor.Rule, e *engine) *RuleCount {
	out := &RuleCount{Requests: c.requests, Refused: c.refused, NotEnforced: c.notEnforced}
	if c.column > 0 {
		out.OverTime = e.series.counts(c.column - 1)
	}
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

// burstText returns what a bucket admits at once besides its rate; empty for limits without a burst.
func burstText(l *descriptor.Limit) string {
	switch {
	case !l.Has(descriptor.SettingBurst):
		return ""
	case l.Algorithm == descriptor.LeakyBucket:
		return strconv.FormatUint(uint64(l.Burst), 10) + " may wait"
	default:
		return strconv.FormatUint(uint64(l.Burst), 10)
	}
}

func limitText(l *descriptor.Limit) string {
	text := strconv.FormatUint(uint64(l.Requests), 10) + " per "
	if l.Window.Multiplier > 1 {
		return text + strconv.FormatUint(uint64(l.Window.Multiplier), 10) + " " + l.Window.Unit.String() + "s"
	}
	return text + l.Window.Unit.String()
}

// changedRules returns the rules that differ between two trees, in the order of the new tree; rules that are gone come last.
func changedRules(now, old *descriptor.Tree) (all []RuleChange) {
	before := make(map[string]*descriptor.Rule, len(old.Rules))
	for _, r := range old.Rules {
		before[identity(r)] = r
	}
	for _, r := range now.Rules {
		c := RuleChange{Rule: r.Path, File: r.Position.File, Line: r.Position.Line, New: ruleLines(r)}
		id := identity(r)
		if was := before[id]; was != nil {
			c.Old = ruleLines(was)
			delete(before, id)
		}
		if !slices.Equal(c.Old, c.New) {
			all = append(all, c)
		}
	}
	for _, r := range old.Rules {
		if before[identity(r)] == r {
			all = append(all, RuleChange{Rule: r.Path, File: r.Position.File, Line: r.Position.Line, Old: ruleLines(r)})
		}
	}
	return append(changedDomains(now, old), all...)
}

// changedDomains returns the domains whose admission differs. It decides which limits a refused request counts in.
func changedDomains(now, old *descriptor.Tree) (all []RuleChange) {
	for d := range now.EachDomain() {
		was := old.Domain(d.Name)
		if was != nil && was.Admission != d.Admission {
			all = append(all, RuleChange{Rule: d.Name, Old: []string{admissionText(was)}, New: []string{admissionText(d)}})
		}
	}
	slices.SortFunc(all, func(a, b RuleChange) int { return strings.Compare(a.Rule, b.Rule) })
	return all
}

func admissionText(d *descriptor.Domain) string {
	if d.Admission == descriptor.AdmissionDefault {
		return "admission as the service has it"
	}
	return "admission " + descriptor.AdmissionNames[d.Admission]
}

// ruleLines describes what a rule does to requests, a line for each limit and each flag. It is never empty.
func ruleLines(r *descriptor.Rule) []string {
	lines := []string{}
	for i := range r.Limits {
		text := r.Limits[i].Words()
		if name := r.Limits[i].Name; name != "" {
			text = name + ": " + text
		}
		lines = append(lines, text)
	}
	for _, flag := range []struct {
		set  bool
		text string
	}{{r.Unlimited, "unlimited"}, {r.Shadow, "shadow mode"}, {r.Quota, "quota mode"}, {len(r.Replaces) > 0, "replaces " + strings.Join(r.Replaces, ", ")}} {
		if flag.set {
			lines = append(lines, flag.text)
		}
	}
	if len(lines) == 0 {
		lines = append(lines, "no limit")
	}
	return lines
}
