package descriptor

import (
	"fmt"
	"strconv"
	"strings"
)

// Rule holds the limits and flags of one node of the tree. A node without a rate limit has no rule.
type Rule struct {
	Name      string   // may be empty
	Limits    []Limit  // all must allow; empty if Unlimited
	Replaces  []string // names of limits that do not apply to a request when this rule matches
	Unlimited bool     // every request passes, and nothing is counted
	denies    denial   // filled in by Compile
	Needs     Needs    // filled in by Compile
	Index     int32    // index in Tree.Rules; metric handles are looked up by it, not by name

	RuleSettings

	Schedule *Schedule // when its limits apply; nil means always

	// settings that depend on the entries of a request; may be nil. Few rules have them, so it is a pointer
	ByEntry *ByEntry

	MetricValues *MetricLevels // levels where the metric's name has the request's value instead of the rule's; may be nil
	Levels       []Level       // the path of keys and values from the domain to this rule
	Domain       string        // the domain it belongs to
	Path         string        // "domain.key_value.key": the rule's identity in metrics, logs and answers
	Position     Position      // position of the rule in its rule file

	// shared holds the texts that replace values in the counter's key. It is nil if no value is replaced. Few rules have
	// it, so it is a pointer: there may be very many rules.
	shared *sharedLevels

	tags []string // tags of the counters of Limits, computed once
}

// RuleSettings are the settings of a rule, apart from its limits and those that depend on the entries of a request.
type RuleSettings struct {
	// Metadata is merged into the answer's dynamic metadata when the rule passes. Values are string, bool, int, float64,
	// nil, []any and map[string]any. It must not be modified.
	Metadata map[string]any

	// the most requests per unit, and the largest burst, of an operator's override; 0 if overrides are not allowed
	OverrideMax    uint64
	OnError        OnError // what to do when the backend cannot read its counters
	Shadow         bool    // decided and measured, but not enforced
	Quota          bool    // quota mode: the request is denied only when all quota-mode descriptors are over their limits
	Usage          bool    // operators may list its counters by an entry
	DetailedMetric bool    // the metric's name comes from the request's entries instead of Path
}

// OverrideUnbounded is the OverrideMax of a rule whose overrides have no bound.
const OverrideUnbounded = MaxRequests

// MetricLevels holds for each level whether the metric's name has the request's value instead of the rule's.
type MetricLevels []bool

// Has reports whether the metric's name has the request's value at a level.
func (m *MetricLevels) Has(level int) bool { return m != nil && (*m)[level] }

// Varies reports whether a limit does anything other than deny all customers above it.
func (r *Rule) Varies() bool { return r.Needs&NeedsVary != 0 }

// Overridable reports whether operators may give one customer of the rule other numbers.
func (s *RuleSettings) Overridable() bool { return s.OverrideMax > 0 }

// Reservable reports whether clients may reserve hits under a limit of the rule.
func (r *Rule) Reservable() bool {
	for i := range r.Limits {
		if r.Limits[i].Reservable() {
			return true
		}
	}
	return false
}

// Cost returns the price in hits of the amounts of reservations under the rule. If it is empty, every amount counts
// once.
func (r *Rule) Cost() Cost {
	if len(r.Limits) == 0 || r.Limits[0].Reservations == nil {
		return nil
	}
	return r.Limits[0].Reservations.Cost
}

// Level is one step of a rule's path, as the rule file writes it.
type Level struct {
	Key   string
	Value string    // the value, the pattern, the network, or the values with commas between them; empty for any value
	Kind  MatchKind // how Value is matched
}

// Text returns the level's key and value as one text. A level with a star in its key is matched by this text.
func (l Level) Text() string {
	if l.Value == "" {
		return l.Key
	}
	return l.Key + "_" + l.Value
}

// PatternFor returns the text that replaces the value of an entry with this key, in names and keys that show the
// level's pattern. For a level with a star in its key it is the level's Text, without the key and underscore if Text
// starts with them.
func (l Level) PatternFor(key string) string {
	if !HasWildcard(l.Key) {
		return l.Value
	}
	text := l.Text()
	if rest, ok := strings.CutPrefix(text, key); ok && strings.HasPrefix(rest, "_") {
		return rest[1:]
	}
	return text
}

// sharedLevels are the levels of one rule.
type sharedLevels struct {
	levels  []shared
	grouped bool   // a level has a group
	with    string // Rule.CountedWith
	first   string // Rule.FirstTag, if with is not empty
}

// shared replaces the value of a level in the counter's key. If the text is empty, the value is not replaced.
type shared struct {
	text  string    // sharedBy, or groupedBy
	group *grouping // nil if all values share one counter; otherwise the counted value follows the text
}

// condition reports whether the level is a condition.
func (s shared) condition() bool { return s.text == conditionMark }

// Shares reports whether all values that match the rule at this level share one counter.
func (r *Rule) Shares(level int) bool {
	return r.shared != nil && r.shared.levels[level].text != "" && r.shared.levels[level].group == nil
}

// groupings returns the settings fold_case and group of all levels, in their order. /rlconfig shows both keys at the
// first of them, which it passes, so that the settings of one level stand together.
func (r *Rule) groupings(first string) string {
	var all []string
	for i, l := range r.Levels {
		group, fold := r.GroupAt(i)
		if fold {
			all = append(all, "fold_case: "+strconv.Quote(l.Key))
		}
		if group != (Group{}) {
			all = append(all, "group: "+strconv.Quote(l.Key)+" "+group.String())
		}
	}
	text, ok := strings.CutPrefix(strings.Join(all, ", "), first+": ")
	return when(ok, text)
}

// costs returns the rule's setting cost.
func (r *Rule) costs() string {
	var all []string
	if c := r.HitCost(); c != nil {
		all = append(all, c.String())
	}
	var weights []string
	for _, w := range r.Cost() {
		weights = append(weights, fmt.Sprintf("%s=%v", strconv.Quote(w.Name), float64(w.Millionths)/WeightOne))
	}
	if weights != nil {
		all = append(all, strings.Join(weights, " "))
	}
	return strings.Join(all, ", cost: ")
}
