package simulate

import "time"

// Report is the result of a run.
type Report struct {
	Rules   string   `json:"rules"`             // the directory
	Against string   `json:"against,omitempty"` // the directory that it is compared with
	Logs    []string `json:"logs"`

	Overrides string `json:"overrides,omitempty"` // the file of the active overrides

	From time.Time `json:"from"` // time of the first request
	To   time.Time `json:"to"`   // time of the last request

	Lines    int64     `json:"lines"`     // lines of all logs, without empty ones
	Requests int64     `json:"requests"`  // lines that are requests
	Skipped  int64     `json:"not_asked"` // lines skipped by the mapping
	Bad      int64     `json:"bad_lines"`
	FirstBad []BadLine `json:"first_bad_lines,omitempty"`
	Order    Order     `json:"order"`

	New Side  `json:"new"`
	Old *Side `json:"old,omitempty"`
	// With two directories: requests that pass with the old one and are denied with the new one, and vice versa.
	NewlyDenied *Change `json:"newly_denied,omitempty"`
	NewlyPassed *Change `json:"newly_passed,omitempty"`

	ByRule    []Rule   `json:"by_rule"`
	Unreached []string `json:"rules_without_requests,omitempty"`

	Customers Customers `json:"customers"`

	Warnings []string `json:"warnings,omitempty"`
	Seconds  float64  `json:"seconds"` // duration of the run
	PerSec   float64  `json:"requests_per_second"`
}

// BadLine is a line that could not be used.
type BadLine struct {
	Log     string `json:"log"`
	Line    int    `json:"line"` // line number, from 1
	Message string `json:"message"`
}

// String is log:line: message.
func (b *BadLine) String() string { return place(b.Log, b.Line) + ": " + b.Message }

// Order describes how far the lines were out of order.
type Order struct {
	WindowSeconds   float64 `json:"window_seconds"`
	Reordered       int64   `json:"reordered"` // sorted
	Late            int64   `json:"late"`      // too late to be sorted: decided at a later time than their own
	MostLateSeconds float64 `json:"most_late_seconds"`
	FirstLate       string  `json:"first_late,omitempty"` // log:line
	Shortened       int64   `json:"shortened,omitempty"`  // how often the window was shortened to bound memory
}

// Side contains the results of all requests under one directory of rules.
type Side struct {
	Allowed     int64 `json:"allowed"`
	Denied      int64 `json:"denied"`
	NotEnforced int64 `json:"not_enforced"` // allowed requests over a limit: shadow mode, quota mode
	NoRule      int64 `json:"no_rule"`      // allowed requests that no rule matched
	// allowed requests that matched only rules without an active limit
	Inactive      int64  `json:"inactive,omitempty"`
	UnknownDomain int64  `json:"unknown_domain"`
	Failed        int64  `json:"failed"` // no decision could be made
	FirstFailure  string `json:"first_failure,omitempty"`
	Rules         int    `json:"rules"`                // number of rules
	Overridden    int64  `json:"overridden,omitempty"` // decided with an override
}

// Untried is the number of requests that no limit concerns.
func (s *Side) Untried() int64 { return s.NoRule + s.UnknownDomain + s.Inactive }

// Change counts the requests and customers whose verdicts differ between two directories.
type Change struct {
	Requests  int64 `json:"requests"`
	Customers int64 `json:"customers"`
}

// Rule has the results of one rule.
type Rule struct {
	Rule   string     `json:"rule"` // its path
	Name   string     `json:"name,omitempty"`
	File   string     `json:"file,omitempty"`
	Line   int        `json:"line,omitempty"`
	Shadow bool       `json:"shadow_mode,omitempty"`
	New    *RuleCount `json:"new,omitempty"` // nil if the directory has no such rule
	Old    *RuleCount `json:"old,omitempty"`
	// requests; counts for each rule of the new directory that denies
	NewlyDenied int64 `json:"newly_denied,omitempty"`
	NewlyPassed int64 `json:"newly_passed,omitempty"` // requests that the rule of the old directory denied
}

func (r *Rule) requests() int64    { return both(r, func(c *RuleCount) int64 { return c.Requests }) }
func (r *Rule) denied() int64      { return both(r, func(c *RuleCount) int64 { return c.Denied }) }
func (r *Rule) notEnforced() int64 { return both(r, func(c *RuleCount) int64 { return c.NotEnforced }) }

func both(r *Rule, of func(*RuleCount) int64) int64 {
	n := int64(0)
	for _, c := range []*RuleCount{r.New, r.Old} {
		if c != nil {
			n += of(c)
		}
	}
	return n
}

// RuleCount has the counts of a rule in one directory.
type RuleCount struct {
	Requests    int64   `json:"requests"`     // descriptors that matched
	Denied      int64   `json:"denied"`       // descriptors over the limit in a denied request
	NotEnforced int64   `json:"not_enforced"` // descriptors over the limit without a denial: shadow mode, quota mode
	Limits      []Limit `json:"limits,omitempty"`
}

// Limit is a limit of a rule.
type Limit struct {
	Name  string `json:"name,omitempty"`
	Limit string `json:"limit"`           // 5 per minute
	Burst string `json:"burst,omitempty"` // burst of a bucket, in addition to its rate: 20, or 20 may wait
	Over  int64  `json:"over"`            // how often it denied, enforced or not
}

// Customers contains the results of the customers that were denied or whose verdicts change, and of the busiest other
// customers.
type Customers struct {
	Seen  int64      `json:"seen"`  // number of different customers
	Exact bool       `json:"exact"` // false: there were too many to count individually, and Seen is a lower bound
	Rows  []Customer `json:"rows"`  // the most important first
	// Others has the sum of all customers that are not in Rows.
	Others *Customer `json:"others,omitempty"`
}

// Customer has the results of one customer.
type Customer struct {
	Customer    string `json:"customer"`
	Requests    int64  `json:"requests"`
	Denied      int64  `json:"denied"`
	OldDenied   int64  `json:"old_denied,omitempty"`
	NewlyDenied int64  `json:"newly_denied,omitempty"`
	NewlyPassed int64  `json:"newly_passed,omitempty"`
	// The limits that denied it most, at most five each: of the new rules, of the new rules for newly denied
	// requests, and of the old rules.
	DeniedBy      []DeniedBy `json:"denied_by,omitempty"`
	NewlyDeniedBy []DeniedBy `json:"newly_denied_by,omitempty"`
	OldDeniedBy   []DeniedBy `json:"old_denied_by,omitempty"`
	First         *time.Time `json:"first,omitempty"`   // when it was first denied; with two directories, newly denied
	Missing       int64      `json:"missing,omitempty"` // largest number by which Requests may be too small
}

// DeniedBy is a limit that denied requests of a customer. A request that several limits deny counts for each.
type DeniedBy struct {
	Rule     string `json:"rule"` // its path
	Name     string `json:"name,omitempty"`
	Limit    string `json:"limit,omitempty"` // 5 per minute
	Burst    string `json:"burst,omitempty"` // see Limit.Burst
	Requests int64  `json:"requests"`

	Overridden bool `json:"overridden,omitempty"` // denied by the numbers of the customer's override, not of Limit
}
