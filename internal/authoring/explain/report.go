package explain

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// Report explains one request.
type Report struct {
	RulesFrom string `json:"rules_from,omitempty"` // "the files in DIR" or "the server ADDRESS"
	Server    string `json:"server,omitempty"`     // the server that explained the request; its headers are then unknown

	Domain     string `json:"domain"`
	Known      bool   `json:"domain_known"` // rules are loaded for it
	DidYouMean string `json:"did_you_mean,omitempty"`
	Admission  Choice `json:"admission"`

	QuotaBucket *QuotaBucket `json:"quota_bucket,omitempty"` // the descriptors are ids of quota buckets

	Descriptors []Descriptor `json:"descriptors"`

	HeadersAsked bool `json:"headers_asked"` // the domain or the server enables headers

	// Headers of the answer to the first request, and to the first denied one.
	Passing []Header `json:"headers_passing"`
	Denied  []Header `json:"headers_denied"`
	Passes  bool     `json:"passes"` // the first request passes
	Denies  bool     `json:"denies"` // such requests are denied at some point
}

// Choice is the value of a setting, and the place where it is set: "rule", "domain" or "server".
type Choice struct {
	Value string `json:"value"`
	By    string `json:"by"`
}

// QuotaBucket describes the domain's settings for quota buckets.
type QuotaBucket struct {
	Order   []string `json:"order"`   // the keys that are matched first; the others follow, sorted by key
	Default string   `json:"default"` // "allow" or "deny", for a bucket without a rule
}

// Entry is one key/value pair.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Header is one header of an answer.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Descriptor explains one descriptor.
type Descriptor struct {
	Entries     []Entry `json:"entries"`
	Matched     bool    `json:"matched"` // a rule matches, or the request carries a limit
	Reason      string  `json:"reason,omitempty"`
	DidYouMean  string  `json:"did_you_mean,omitempty"`
	Levels      []Level `json:"levels"`
	Rule        *Rule   `json:"rule,omitempty"`
	FromRequest bool    `json:"from_request,omitempty"` // the limit comes from the request
	Override    string  `json:"override,omitempty"`     // the numbers of an operator's override, in words
	Replaced    bool    `json:"replaced,omitempty"`     // another descriptor's rule replaces this one's limits
	Limits      []Limit `json:"limits"`

	// StateOf is the server that the states of the limits come from; empty if they are not known.
	StateOf string `json:"state_of,omitempty"`

	// Regions describes, in words, the state of the rule's limits in other regions, as that server sees it.
	Regions []string `json:"regions,omitempty"`
}

// Level is one step down the tree.
type Level struct {
	Entry
	Candidates []Candidate `json:"candidates"`
	Reason     string      `json:"reason,omitempty"` // why no candidate was chosen
}

// Candidate is a rule with the entry's key, or all such rules of one kind of match.
type Candidate struct {
	Kind   string `json:"kind"`
	Value  string `json:"value,omitempty"`
	Taken  bool   `json:"taken"`
	Reason string `json:"reason"`
}

// Rule is the rule that matches.
type Rule struct {
	Path      string   `json:"path"`
	Name      string   `json:"name,omitempty"`
	File      string   `json:"file,omitempty"`
	Line      int      `json:"line,omitempty"`
	Column    int      `json:"column,omitempty"`
	Unlimited bool     `json:"unlimited,omitempty"`
	Shadow    Choice   `json:"shadow_mode"` // "true" or "false"
	Quota     Choice   `json:"quota_mode"`
	OnError   Choice   `json:"on_error"`
	Replaces  []string `json:"replaces,omitempty"`
	HitCost   uint64   `json:"hit_cost,omitempty"` // cost of each hit of the request
}

// Limit is one limit of a rule, and its counter.
type Limit struct {
	Name          string  `json:"name,omitempty"`
	Words         string  `json:"words"`
	Requests      uint64  `json:"requests_per_unit"`
	Unit          string  `json:"unit"`
	Multiplier    uint32  `json:"unit_multiplier"`
	WindowSeconds float64 `json:"window_seconds"`
	Algorithm     string  `json:"algorithm"`
	Capacity      uint64  `json:"capacity"`
	Key           string  `json:"key"`
	Inactive      bool    `json:"inactive,omitempty"` // it does not apply at the time of the request
	State         *State  `json:"state,omitempty"`

	Regions *descriptor.Regions `json:"-"` // a server's explanation; Words says the same
	Lease   bool                `json:"-"`
	Home    string              `json:"-"` // the region that counts, as a server in a region explains it

	// percentage of customers for whom the limit is enforced; absent if the rule does not set it
	EnforcePercent uint8 `json:"enforce_percent,omitempty"`
	// the customer's class, where classes share the limit; "*" if its value has none
	Class       string `json:"class,omitempty"`
	NotEnforced bool   `json:"not_enforced,omitempty"` // not enforced for this customer
}

// Matched returns how many descriptors match a rule or carry a limit.
func (r *Report) Matched() int {
	n := 0
	for i := range r.Descriptors {
		if r.Descriptors[i].Matched {
			n++
		}
	}
	return n
}
