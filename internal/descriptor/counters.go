package descriptor

import (
	"slices"
	"strings"
)

// SameCounter reports whether two limits of one rule would be one counter: they have the same algorithm and window, and
// both are enforced for all customers at all times or have the same name.
func (l *Limit) SameCounter(other *Limit) bool {
	return l.SharesCounter(other) && (l.Enforcement == EnforcedForAll) == (other.Enforcement == EnforcedForAll) &&
		(l.Enforcement == EnforcedForAll && !l.Scheduled || l.Name == other.Name)
}

// Tag returns the end of the keys of a limit's counters: the identity of a limit among those that use counters of the
// same entries. It is the same in every replica and region, in keys, in questions and in shared counters. The limit is
// one of the rule, or one with other numbers (an override, a scale, a class); the rule may be nil.
func (r *Rule) Tag(l *Limit) string {
	if r != nil {
		for i := range r.tags {
			if own := &r.Limits[i]; own == l || own.SameCounter(l) { // no two limits of a rule are the same counter
				return r.tags[i]
			}
		}
	}
	b := l.appendTag(nil)
	if l.Enforcement != EnforcedForAll { // no compiled rule has it
		b = appendEscaped(append(b, '~'), l.Name)
	}
	return string(b)
}

// CountedWith returns a text that is the same for all rules of the domain that can share counters, although another
// condition chooses them. It is empty for a rule that shares its counters with no other.
func (r *Rule) CountedWith() string {
	if r.shared == nil {
		return ""
	}
	return r.shared.with
}

// tagCounters makes the ends of the keys of a rule's counters: the algorithm and window, and the name of a limit that
// must not share its counter with another limit of the rule.
func (r *Rule) tagCounters() {
	var u counterUsers
	if len(r.Limits) > 1 {
		u.add(r)
	}
	r.tags = make([]string, len(r.Limits))
	for i := range r.Limits {
		l := &r.Limits[i]
		b := l.appendTag(nil)
		if l.Scheduled && u[string(b)].enforced > 1 && l.Enforcement == EnforcedForAll {
			b = appendEscaped(append(b, '~'), l.Name)
		}
		r.tags[i] = string(b)
	}
	u.tagTrials(r)
}

// counterUsers lists the limits that use counters of the same entries, by algorithm and window. Only a limit that is
// not enforced for all customers, and would share a counter with another limit, has its name in its keys. So a limit
// that is being tried out uses up nothing of an enforced limit, and the counters of enforced limits keep their keys.
type counterUsers map[string]counterUser

type counterUser struct {
	limit    *Limit // the first one
	others   bool   // a limit that is not the same counter as the first one
	enforced int    // how many are enforced for all
}

func (u *counterUsers) add(r *Rule) {
	if *u == nil {
		*u = make(counterUsers, len(r.Limits))
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		tag := string(l.appendTag(nil))
		user := (*u)[tag]
		if user.limit == nil {
			user.limit = l
		}
		user.others = user.others || !user.limit.SameCounter(l)
		if l.Enforcement == EnforcedForAll {
			user.enforced++
		}
		(*u)[tag] = user
	}
}

// tagTrials makes the ends of the keys of the limits that are not enforced for all. With a schedule they have another
// mark than the enforced ones, which have their names in their keys too.
func (u counterUsers) tagTrials(r *Rule) {
	for i := range r.Limits {
		l := &r.Limits[i]
		if l.Enforcement == EnforcedForAll {
			continue
		}
		b := l.appendTag(nil)
		if u[string(b)].others {
			b = append(b, '~')
			if l.Scheduled {
				b = append(b, '~')
			}
			b = appendEscaped(b, l.Name)
		}
		r.tags[i] = string(b)
	}
}

// conditionalRules are the rules of one domain that have a condition. A request that meets another condition can use
// the same counter under another rule. No other rules share counters.
type conditionalRules struct {
	rules   []*Rule
	varies  bool // a rule has a limit that is not enforced for all
	starred bool // a rule has a key with a star, which can match the key of another rule
}

func (c *conditionalRules) add(r *Rule) {
	if r.shared == nil || !slices.ContainsFunc(r.shared.levels, shared.condition) {
		return
	}
	for i := range r.shared.levels {
		// a rule with another condition may have other groups
		if l := &r.shared.levels[i]; l.group != nil && l.group.group != (Group{}) {
			l.text += l.group.mark()
		}
	}
	c.rules = append(c.rules, r)
	c.varies = c.varies || r.Varies()
	c.starred = c.starred || slices.ContainsFunc(r.Levels, func(l Level) bool { return HasWildcard(l.Key) })
}

// tagCounters makes the ends of the keys again, for the rules that can share counters. It compares keys and conditions,
// and not values: two rules with a pattern and a value can match the same entry.
func (c *conditionalRules) tagCounters() {
	for _, r := range c.rules {
		r.shared.with = c.identity(r)
	}
	defer c.joinCounters()
	if !c.varies {
		return
	}
	users := make(map[string]*counterUsers)
	of := make([]*counterUsers, len(c.rules))
	for i, r := range c.rules {
		id := r.shared.with
		if users[id] == nil {
			users[id] = new(counterUsers)
		}
		of[i] = users[id]
		of[i].add(r)
	}
	for i, r := range c.rules {
		if r.Varies() {
			of[i].tagTrials(r)
		}
	}
}

// joinCounters finds FirstTag of each rule.
func (c *conditionalRules) joinCounters() {
	type counters struct{ with, tag string } // counters with the same entries, and the tag of one of them
	smaller := make(map[counters]string)     // a tag in the same set; none: it is the smallest
	first := func(k counters) string {
		for smaller[k] != "" {
			k.tag = smaller[k]
		}
		return k.tag
	}
	for _, r := range c.rules {
		own := r.smallestTag()
		for i := range r.tags {
			if r.Limits[i].Algorithm == Concurrency {
				continue
			}
			a, b := first(counters{r.shared.with, own}), first(counters{r.shared.with, r.tags[i]})
			if a != b {
				smaller[counters{r.shared.with, max(a, b)}] = min(a, b)
			}
		}
	}
	for _, r := range c.rules {
		r.shared.first = first(counters{r.shared.with, r.smallestTag()})
	}
}

// FirstTag returns the smallest Tag of all counters with the same entries that limits of the rule are counted with: by
// the rule, by rules that share one of its counters, by rules that share one of theirs, and so on. So it is the same
// for any two rules that share a counter. Limits without a rate do not matter.
func (r *Rule) FirstTag() string {
	if r.CountedWith() != "" {
		return r.shared.first
	}
	return r.smallestTag()
}

func (r *Rule) smallestTag() (smallest string) {
	for i, tag := range r.tags {
		if r.Limits[i].Algorithm != Concurrency && (smallest == "" || tag < smallest) {
			smallest = tag
		}
	}
	return smallest
}

// identity returns a text that is the same for all rules that can share a counter.
func (c *conditionalRules) identity(r *Rule) string {
	var b strings.Builder
	for i, l := range r.Levels {
		b.WriteByte('|')
		if !c.starred {
			b.Write(appendEscaped(nil, l.Key))
		}
		if r.shared.levels[i].condition() {
			b.WriteString(conditionMark)
		}
	}
	return b.String()
}
