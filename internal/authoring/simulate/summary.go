package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// busiest is how many customers without denials are reported.
const busiest = 100

// report builds the Report.
func (r *run) report(in *intake) *Report {
	o := r.options
	out := &Report{
		Rules: o.Rules.Directory, Overrides: o.Overrides,
		From: instant(r.from), To: instant(r.to),
		Lines: in.lines, Requests: r.requests, Skipped: in.skipped, Bad: in.bad, FirstBad: in.firstBad,
		Order: in.order.reported(o),
		New:   r.now.side(r.outcomes[0]),
	}
	for _, l := range o.Logs {
		out.Logs = append(out.Logs, l.Name)
	}
	out.ByRule, out.Unreached = byRule(r.now, r.old)
	out.Customers = r.reportedCustomers()
	if r.old != nil {
		out.Against = o.Against.Directory
		side := r.old.side(r.outcomes[1])
		out.Old = &side
		out.NewlyDenied, out.NewlyPassed = r.changes()
	}
	for _, e := range in.missed.Errors(o.Mapping) {
		out.Warnings = append(out.Warnings, e.Error())
	}
	out.Warnings = append(out.Warnings, o.Rules.misfits()...)
	if o.Against != nil {
		out.Warnings = append(out.Warnings, o.Against.misfits()...)
	}
	out.warn(r.now, r.old, o.Duration)
	return out
}

// misfits are warnings about overrides that do not fit the rules.
func (r *Rules) misfits() (warnings []string) {
	const most = 3
	for _, why := range r.Misfits[:min(len(r.Misfits), most)] {
		warnings = append(warnings, fmt.Sprintf("with the rules of %s an override has no effect: %s", r.Directory, why))
	}
	if n := len(r.Misfits) - most; n > 0 {
		warnings = append(warnings, fmt.Sprintf("with the rules of %s %d more overrides have no effect", r.Directory, n))
	}
	return warnings
}

func instant(micro int64) time.Time { return time.UnixMicro(micro).UTC() }

func (o *order) reported(options *Options) Order {
	out := Order{
		WindowSeconds: options.Window.Seconds(), Reordered: o.reordered, Shortened: o.shortened,
		Late: o.late.Lines, MostLateSeconds: float64(o.late.Most) / 1e6,
	}
	if o.late.Lines > 0 {
		out.FirstLate = place(options.Logs[o.late.Log].Name, o.late.Number)
	}
	return out
}

func (e *engine) side(outcomes [3]int64) Side {
	s := Side{
		Allowed: outcomes[allowed], Denied: outcomes[denied], Failed: outcomes[failed],
		NotEnforced: e.notEnforced, NoRule: e.noRule, Inactive: e.inactive, UnknownDomain: e.unknown,
		Rules: len(e.tree.Rules), Overridden: e.overridden,
	}
	if e.failure != nil {
		s.FirstFailure = e.failure.Error()
	}
	return s
}

// changes counts the differences between the directories.
func (r *run) changes() (newly, passed *Change) {
	newly, passed = &Change{Requests: r.newly}, &Change{Requests: r.passed}
	for _, c := range r.customers.rows {
		if c.newly > 0 {
			newly.Customers++
		}
		if c.passed > 0 {
			passed.Customers++
		}
	}
	return newly, passed
}

// reportedCustomers returns all customers that were denied or whose verdicts change, and the busiest of the others.
func (r *run) reportedCustomers() Customers {
	all := r.customers.sorted()
	out := Customers{Seen: int64(len(all)), Exact: r.customers.dropped == 0}
	others := r.customers.others
	for i, c := range all {
		quiet := c.denied == 0 && c.old == 0
		if quiet && i >= busiest {
			others.requests += c.requests
			continue
		}
		out.Rows = append(out.Rows, r.reportedCustomer(c))
	}
	if others.requests > 0 {
		row := r.reportedCustomer(&others)
		row.Missing, row.First = 0, nil
		out.Others = &row
	}
	return out
}

func (r *run) reportedCustomer(c *customerRow) Customer {
	out := Customer{
		Customer: c.name, Requests: c.requests, Denied: c.denied, OldDenied: c.old,
		NewlyDenied: c.newly, NewlyPassed: c.passed, Missing: c.missed,
	}
	out.DeniedBy = c.by.reported(r.now)
	out.NewlyDeniedBy = c.byNewly.reported(r.now)
	if r.old != nil {
		out.OldDeniedBy = c.byOld.reported(r.old)
	}
	if c.first > 0 {
		at := instant(c.first)
		out.First = &at
	}
	return out
}

// warn adds warnings about anything that makes the figures doubtful.
func (r *Report) warn(now, old *engine, duration time.Duration) {
	add := func(format string, args ...any) { r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...)) }
	if r.Order.Late*100 > r.Lines {
		add("%d lines are older than others before them by up to %s, more than the window of %s: sort the log, or give a "+
			"longer --reorder; the first is %s",
			r.Order.Late, seconds(r.Order.MostLateSeconds), seconds(r.Order.WindowSeconds), r.Order.FirstLate)
	}
	if r.Order.Shortened > 0 {
		add("too many lines to hold within %s: the window was shortened %d times", seconds(r.Order.WindowSeconds),
			r.Order.Shortened)
	}
	if !r.Customers.Exact {
		add("too many customers to count individually: some that were never denied are counted as others; raise " +
			"--max-customers")
	}
	for _, side := range []struct {
		of        *Side
		engine    *engine
		directory string
	}{{&r.New, now, r.Rules}, {r.Old, old, r.Against}} {
		if side.of == nil {
			continue
		}
		if path := side.engine.inFlight(); path != "" && duration == 0 {
			add("the log does not say how long a request was in flight: under %s (rules of %s) each request keeps its place "+
				"for the whole `ttl`, so too many are denied; give their usual duration with --duration",
				path, side.directory)
		} else if path != "" {
			add("each request is assumed to be in flight for %s, or for the `ttl` of the rule if that is shorter "+
				"(--duration): for that long it keeps its place under %s (rules of %s)",
				duration, path, side.directory)
		}
		if side.of.Failed > 0 {
			add("with the rules of %s no decision could be made for %d requests: %s", side.directory, side.of.Failed,
				side.of.FirstFailure)
		}
		switch {
		case side.of.UnknownDomain == r.Requests:
			add("the rules of %s match no request at all: %s", side.directory,
				unknownDomain(side.engine.firstUnknown, side.engine.tree))
		case side.of.NoRule+side.of.UnknownDomain == r.Requests:
			add("the rules of %s match no request at all: compare the keys in the mapping with the rules", side.directory)
		case side.of.Untried() == r.Requests:
			add("no limit of the rules of %s is active at the time of a request that it matches: compare the times of the log "+
				"with `active`", side.directory)
		case side.of.Inactive > 0:
			add("with the rules of %s %d of %d requests pass because no limit that matches them is `active` at their time",
				side.directory, side.of.Inactive, r.Requests)
		}
	}
}

// unknownDomain explains that the rules do not have the domain of the requests.
func unknownDomain(requested string, tree *descriptor.Tree) string {
	var domains []string
	for _, r := range tree.Rules {
		if !slices.Contains(domains, r.Domain) {
			domains = append(domains, r.Domain)
		}
	}
	if near := yamlform.Closest(requested, domains); near != "" {
		return fmt.Sprintf("requests have the domain %s, did you mean `%s`?", yamlform.Quote(requested), near)
	}
	slices.Sort(domains)
	return fmt.Sprintf("requests have the domain %s, the rules have %s", yamlform.Quote(requested),
		yamlform.List(domains, "and"))
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

// inFlight returns the path of the first rule with a limit of requests in flight that has decided a request, or "".
func (e *engine) inFlight() string {
	for i, r := range e.tree.Rules {
		concurrency := func(l descriptor.Limit) bool { return l.Algorithm == descriptor.Concurrency }
		if e.rules[i].requests > 0 && slices.ContainsFunc(r.Limits, concurrency) {
			return r.Path
		}
	}
	return ""
}
