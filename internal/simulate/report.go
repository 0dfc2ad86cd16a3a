package simulate

import "time"

// Report is what came of a run.
type Report struct {
	Rules   string   `json:"rules"`             // the folder
	Against string   `json:"against,omitempty"` // the folder that it is compared with
	Logs    []string `json:"logs"`

	From time.Time `json:"from"` // of the first request
	To   time.Time `json:"to"`   // of the last

	Lines    int64     `json:"lines"`     // of all logs, without empty ones
	Requests int64     `json:"requests"`  // lines that ask something
	NotAsked int64     `json:"not_asked"` // lines that do not, as the mapping says
	Bad      int64     `json:"bad_lines"`
	FirstBad []BadLine `json:"first_bad_lines,omitempty"`
	Order    Order     `json:"order"`

	New Side  `json:"new"`
	Old *Side `json:"old,omitempty"`
	// Of two folders: what passes with the old one and is refused with the new one, and the other way round.
	NewlyRefused *Change `json:"newly_refused,omitempty"`
	NewlyPassed  *Change `json:"newly_passed,omitempty"`

	ByRule    []Rule   `json:"by_rule"`
	Unreached []string `json:"rules_without_requests,omitempty"`
	Callers   Callers  `json:"callers"`
	OverTime  OverTime `json:"over_time"`

	Warnings []string `json:"warnings,omitempty"`
	Seconds  float64  `json:"seconds"` // that the run took
	PerSec   float64  `json:"requests_per_second"`
}

// BadLine is a line that could not be used.
type BadLine struct {
	Log     string `json:"log"`
	Line    int    `json:"line"` // from 1
	Message string `json:"message"`
}

// String is log:line: message.
func (b *BadLine) String() string { return place(b.Log, b.Line) + ": " + b.Message }

// Order is how far the lines were from being in order.
type Order struct {
	WindowSeconds   float64 `json:"window_seconds"`
	Reordered       int64   `json:"reordered"` // put in order
	Late            int64   `json:"late"`      // too late for that: decided at a later time than their own
	MostLateSeconds float64 `json:"most_late_seconds"`
	FirstLate       string  `json:"first_late,omitempty"` // log:line
	Shortened       int64   `json:"shortened,omitempty"`  // how often the window had to be cut short to bound memory
}

// Side is what one folder of rules makes of all requests.
type Side struct {
	Allowed       int64  `json:"allowed"`
	Refused       int64  `json:"refused"`
	NotEnforced   int64  `json:"not_enforced"` // of those allowed, over some limit all the same: shadow mode, quota mode
	NoRule        int64  `json:"no_rule"`      // of those allowed, no rule matches
	UnknownDomain int64  `json:"unknown_domain"`
	Failed        int64  `json:"failed"` // no decision could be made
	FirstFailure  string `json:"first_failure,omitempty"`
	Rules         int    `json:"rules"` // how many there are
}

// Change is a difference between two folders.
type Change struct {
	Requests int64 `json:"requests"`
	Callers  int64 `json:"callers"`
}

// Rule is what came of one rule.
type Rule struct {
	Rule         string     `json:"rule"` // its path
	Name         string     `json:"name,omitempty"`
	File         string     `json:"file,omitempty"`
	Line         int        `json:"line,omitempty"`
	Shadow       bool       `json:"shadow_mode,omitempty"`
	New          *RuleCount `json:"new,omitempty"` // nil: the folder has no such rule
	Old          *RuleCount `json:"old,omitempty"`
	NewlyRefused int64      `json:"newly_refused,omitempty"` // requests, by the rule of the new folder; counted with each rule that refuses
	NewlyPassed  int64      `json:"newly_passed,omitempty"`  // requests that the rule of the old folder refused
}

func (r *Rule) requests() int64 { return both(r, func(c *RuleCount) int64 { return c.Requests }) }
func (r *Rule) refused() int64  { return both(r, func(c *RuleCount) int64 { return c.Refused }) }
func (r *Rule) softly() int64   { return both(r, func(c *RuleCount) int64 { return c.NotEnforced }) }

func both(r *Rule, of func(*RuleCount) int64) int64 {
	n := int64(0)
	for _, c := range []*RuleCount{r.New, r.Old} {
		if c != nil {
			n += of(c)
		}
	}
	return n
}

// RuleCount is what one folder's rule counts.
type RuleCount struct {
	Requests    int64   `json:"requests"`         // descriptors that matched
	Refused     int64   `json:"refused"`          // of these, over in a request that was refused
	NotEnforced int64   `json:"not_enforced"`     // of these, over without refusing: shadow mode, quota mode
	Limits      []Limit `json:"limits,omitempty"` // of a rule with several
	OverTime    []int64 `json:"refused_over_time,omitempty"`
}

// Limit is one of several limits of a rule.
type Limit struct {
	Name  string `json:"name,omitempty"`
	Limit string `json:"limit"` // 5 per minute
	Over  int64  `json:"over"`  // how often it refused, enforced or not
}

// Callers is what came of callers: those that were refused or whose verdicts change, and those that ask most.
type Callers struct {
	Seen  int64    `json:"seen"`  // how many different ones
	Exact bool     `json:"exact"` // false: there were more than are kept; Seen is what was at least there
	Rows  []Caller `json:"rows"`  // who matters most first
	// Others is all that is not told in Rows.
	Others *Caller `json:"others,omitempty"`
}

// Caller is what came of one caller.
type Caller struct {
	Caller       string `json:"caller"`
	Requests     int64  `json:"requests"`
	Refused      int64  `json:"refused"`
	OldRefused   int64  `json:"old_refused,omitempty"`
	NewlyRefused int64  `json:"newly_refused,omitempty"`
	NewlyPassed  int64  `json:"newly_passed,omitempty"`
	// The limits that refused it, those that refused most first, no more than five: by the rules, as far as it is newly
	// refused, and by those that are compared with.
	RefusedBy      []RefusedBy `json:"refused_by,omitempty"`
	NewlyRefusedBy []RefusedBy `json:"newly_refused_by,omitempty"`
	OldRefusedBy   []RefusedBy `json:"old_refused_by,omitempty"`
	First          *time.Time  `json:"first,omitempty"`   // when it was first refused; of two folders, newly refused
	Missing        int64       `json:"missing,omitempty"` // by how much Requests may be too small
}

// RefusedBy is a limit that refused requests of a caller. A request that several limits refuse is counted with each.
type RefusedBy struct {
	Rule     string `json:"rule"` // its path
	Name     string `json:"name,omitempty"`
	Limit    string `json:"limit,omitempty"` // 5 per minute
	Requests int64  `json:"requests"`
}

// OverTime is what came when, in buckets of one width.
type OverTime struct {
	Start        time.Time `json:"start"`
	WidthSeconds int64     `json:"width_seconds"`
	Requests     []int64   `json:"requests"`
	Refused      []int64   `json:"refused"`
	OldRefused   []int64   `json:"old_refused,omitempty"`
	NewlyRefused []int64   `json:"newly_refused,omitempty"`
	NewlyPassed  []int64   `json:"newly_passed,omitempty"`
}
