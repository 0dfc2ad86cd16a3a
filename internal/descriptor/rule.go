package descriptor

// Rule is what a matched leaf says: its limits and its flags. A node without a rate limit has no rule.
type Rule struct {
	Name      string   // may be empty
	Limits    []Limit  // all must admit; empty if Unlimited
	Unlimited bool     // everything passes, nothing is counted
	Replaces  []string // names of rules that this one, when it matches, takes out of the request
	Shadow    bool     // judged and measured, not enforced
	OnError   OnError  // what to do when its counters cannot be read
	Quota     bool     // the request is refused only when all quota-mode descriptors are over

	// Metadata is merged into the answer's dynamic metadata when the rule passes. Values are string, bool, int, float64,
	// nil, []any and map[string]any. Nobody may write to it.
	Metadata map[string]any

	DetailedMetric bool     // the metric is named by the entries of the request instead of Path
	MetricValues   []bool   // per level: the metric takes the request's value in place of the rule's; nil if none does
	Levels         []Level  // the path of keys and values from the domain to this rule
	Domain         string   // the domain it belongs to
	Path           string   // "domain.key_value.key": the rule's identity in metrics, logs and answers
	Index          int      // position in Tree.Rules, dense from 0: handles are looked up by it, not by name
	Position       Position // where the rule file says this

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

// Shares says whether at this level the values that match the rule's pattern share one counter.
func (r *Rule) Shares(level int) bool { return r.shared != nil && r.shared[level] != "" }
