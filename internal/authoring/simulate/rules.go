package simulate

import (
	"cmp"
	"maps"
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
		b.WriteString(levelIdentity(l))
	}
	return b.String()
}

func levelIdentity(l descriptor.Level) string {
	return strconv.Quote(l.Key) + strconv.Itoa(int(l.Kind)) + strconv.Quote(l.Value)
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
		to.New = c.reported(r)
		to.NewlyRefused = c.newly
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
func (c *ruleCount) reported(r *descriptor.Rule) *RuleCount {
	out := &RuleCount{Requests: c.requests, Refused: c.refused, NotEnforced: c.notEnforced}
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
		return text + strconv.FormatUint(uint64(l.Window.Multiplier), 10) + " " + l.Window.Unit.String() + "s" + l.EnforcementWords() + l.PenaltyWords()
	}
	return text + l.Window.Unit.String() + l.EnforcementWords() + l.PenaltyWords()
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
	return slices.Concat(changedDomains(now, old), changedOrders(now, old), all)
}

// changedDomains returns the domains whose own settings differ.
func changedDomains(now, old *descriptor.Tree) (all []RuleChange) {
	for d := range now.EachDomain() {
		was := old.Domain(d.Name)
		if was == nil {
			continue
		}
		c := RuleChange{Rule: d.Name}
		before := maps.Collect(descriptor.DomainFacts.Of(&was.DomainSettings))
		after := maps.Collect(descriptor.DomainFacts.Of(&d.DomainSettings))
		for _, f := range descriptor.DomainFacts {
			if from, to := before[f.Key], after[f.Key]; from != to {
				c.Old, c.New = append(c.Old, settingText(f.Key, from)), append(c.New, settingText(f.Key, to))
			}
		}
		if c.New != nil {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b RuleChange) int { return strings.Compare(a.Rule, b.Rule) })
	return all
}

func settingText(key, value string) string {
	if value == "" {
		return key + " as the service has it"
	}
	return key + " " + value
}

// patterns are siblings of which the first that matches a value wins: the siblings with one key, or the siblings with a wildcard in their
// key.
type patterns struct {
	path  string // of the rules above them, and the key that they share
	first *descriptor.Rule
	texts []string // in their order
}

// patternsOf returns all patterns of a tree by the identity of what they share, and these identities in the order of the rules.
func patternsOf(t *descriptor.Tree) (all map[string]*patterns, order []string) {
	all = make(map[string]*patterns)
	for _, r := range t.Rules {
		id, path := strconv.Quote(r.Domain), r.Domain
		for _, l := range r.Levels {
			if l.Kind == descriptor.MatchWildcard || l.Kind == descriptor.MatchRegex {
				group, at, text := id+" "+strconv.Quote(l.Key), path+"."+l.Key, l.Value
				switch {
				case descriptor.HasWildcard(l.Key):
					group, at, text = id, path, l.Text()
				case l.Kind == descriptor.MatchRegex:
					text = "regex " + text
				}
				p := all[group]
				if p == nil {
					p = &patterns{path: at, first: r}
					all[group] = p
					order = append(order, group)
				}
				if n := len(p.texts); n == 0 || p.texts[n-1] != text { // the rules below one pattern follow each other
					p.texts = append(p.texts, text)
				}
			}
			id += levelIdentity(l)
			path += "." + l.Text()
		}
	}
	return all, order
}

// changedOrders returns the patterns that are in both trees, in another order. The first that matches a value decides.
func changedOrders(now, old *descriptor.Tree) (all []RuleChange) {
	was, _ := patternsOf(old)
	is, order := patternsOf(now)
	for _, group := range order {
		p, before := is[group], was[group]
		if before == nil {
			continue
		}
		came, gone := keptIn(before.texts, p.texts), keptIn(p.texts, before.texts)
		for len(came) > 0 && came[0] == gone[0] {
			came, gone = came[1:], gone[1:]
		}
		for n := len(came); n > 0 && came[n-1] == gone[n-1]; n-- { // they have the same texts, each once
			came, gone = came[:n-1], gone[:n-1]
		}
		if len(came) > 0 {
			all = append(all, RuleChange{Rule: p.path, File: p.first.Position.File, Line: p.first.Position.Line, Old: []string{orderText(gone)}, New: []string{orderText(came)}})
		}
	}
	return all
}

// keptIn returns the texts that are in the other list too.
func keptIn(other, texts []string) (kept []string) {
	in := make(map[string]struct{}, len(other))
	for _, t := range other {
		in[t] = struct{}{}
	}
	for _, t := range texts {
		if _, is := in[t]; is {
			kept = append(kept, t)
		}
	}
	return kept
}

func orderText(texts []string) string {
	const most = 10
	text := "first that matches: " + strings.Join(texts[:min(most, len(texts))], ", ")
	if more := len(texts) - most; more > 0 {
		text += ", and " + strconv.Itoa(more) + " more"
	}
	return text
}

// ruleLines describes what a rule does to requests, a line for each limit and each flag. It is never empty.
func ruleLines(r *descriptor.Rule) []string {
	lines := []string{}
	for i := range r.Limits {
		text := r.LimitWords(i)
		if name := r.Limits[i].Name; name != "" {
			text = name + ": " + text
		}
		lines = append(lines, text)
	}
	if c := r.HitCost(); c != nil {
		lines = append(lines, "a hit counts for "+c.String())
	}
	for i := range r.Levels {
		key := r.Levels[i].Key
		group, fold := r.GroupAt(i)
		if fold {
			lines = append(lines, key+" in any case of letters")
		}
		if group != (descriptor.Group{}) {
			lines = append(lines, key+" grouped by "+group.String())
		}
		if r.Shares(i) {
			lines = append(lines, "one counter for the values of "+key)
		}
	}
	for _, flag := range []struct {
		set  bool
		text string
	}{{r.Unlimited, "unlimited"}, {r.Shadow, "shadow mode"}, {r.Quota, "quota mode"}, {r.OnError != descriptor.OnErrorDefault, settingText("on_error", descriptor.OnErrorNames[r.OnError])}, {len(r.Replaces) > 0, "replaces " + strings.Join(r.Replaces, ", ")}} {
		if flag.set {
			lines = append(lines, flag.text)
		}
	}
	if len(lines) == 0 {
		lines = append(lines, "no limit")
	}
	return lines
}
