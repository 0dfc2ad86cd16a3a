package descriptor

import "strings"

// Rule is what a matched leaf says: its limits and its flags. A node without a rate limit has no rule.
type Rule struct {
	Name      string   // may be empty
	Limits    []Limit  // all must admit; empty if Unlimited
	Replaces  []string // names of rules that this one, when it matches, takes out of the request
	Unlimited bool     // everything passes, nothing is counted
	Shadow    bool     // judged and measured, not enforced
	OnError   OnError  // what to do when its counters cannot be read
	Quota     bool     // the request is refused only when all quota-mode descriptors are over

	DetailedMetric bool // the metric is named by the entries of the request instead of Path

	// Metadata is merged into the answer's dynamic metadata when the rule passes. Values are string, bool, int, float64,
	// nil, []any and map[string]any. Nobody may write to it.
	Metadata map[string]any

	MetricValues []bool   // per level: the metric takes the request's value in place of the rule's; nil if none does
	Levels       []Level  // the path of keys and values from the domain to this rule
	Domain       string   // the domain it belongs to
	Path         string   // "domain.key_value.key": the rule's identity in metrics, logs and answers
	Index        int      // position in Tree.Rules, dense from 0: handles are looked up by it, not by name
	Position     Position // where the rule file says this

	// shared is per level what stands in the place of "=value" in the counter's key (sharedBy), or empty; nil if it is
	// empty everywhere.
	shared []string
}

// Level is one step of a rule's path, as the rule file writes it.
type Level struct {
	Key   string
	Value string    // the value, the pattern, the network, or the values with commas between them; empty: any value
	Kind  MatchKind // what Value is
}

// Text is the level's key and value as one text. It is what a level with a star in its key is matched by.
func (l Level) Text() string {
	if l.Value == "" {
		return l.Key
	}
	return l.Key + "_" + l.Value
}

// PatternFor is what stands for the value of an entry with this key, in names and in keys that show the level's pattern.
// Of a level with a star in its key it is the level's text, without the key if it begins with that.
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

// Shares says whether at this level the values that match the rule's pattern share one counter.
func (r *Rule) Shares(level int) bool { return r.shared != nil && r.shared[level] != "" }
