package simulate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

const jsonMapping = `
format: json
time: {field: t, layout: unix}
domain: {field: d, default: edge}
descriptors:
  - [{key: remote_address, field: ip}]
  - [{key: path, field: path}]
`

// at writes a line: seconds after midnight, the client's address, and the path.
func at(second int, ip, path string) string {
	line := fmt.Sprintf(`{"t":%d`, start.Unix()+int64(second))
	if ip != "" {
		line += fmt.Sprintf(`,"ip":%q`, ip)
	}
	if path != "" {
		line += fmt.Sprintf(`,"path":%q`, path)
	}
	return line + "}\n"
}

func run(t *testing.T, o simulate.Options, lines ...string) *simulate.Report {
	t.Helper()
	if o.Mapping == nil {
		o.Mapping = mapping(t, jsonMapping)
	}
	o.Logs = []simulate.Log{log("access.log", strings.NewReader(strings.Join(lines, "")))}
	r, err := simulate.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDenials(t *testing.T) {
	var lines []string
	for i := range 5 {
		lines = append(lines, at(i, "a", ""), at(i, "b", "/x"))
	}
	lines = append(lines, at(60, "a", ""), at(61, "c", ""), at(62, "", "/y"), at(63, "", ""))
	var verdicts []string
	r := run(t, simulate.Options{
		Rules: rules(t, "domain: edge\ndescriptors:\n"+
			"- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 3}}\n"+
			"- {key: path, value: /x, rate_limit: {unit: minute, requests_per_unit: 2}}\n"+
			"- {key: unused, rate_limit: {unit: minute, requests_per_unit: 2}}\n"),
		Verdicts: func(v *simulate.Verdict) error {
			verdicts = append(verdicts, fmt.Sprintf("%s:%d %s %s %s %s", v.Log, v.Line, v.Time.Format(time.TimeOnly), v.Customer, v.Code, v.Rule))
			return nil
		},
	}, lines...)
	want := simulate.Side{Allowed: 8, Denied: 5, NoRule: 1, Rules: 3}
	if diff := cmp.Diff(want, r.New); diff != "" {
		t.Error(diff)
	}
	if r.Lines != 14 || r.Requests != 13 || r.Skipped != 1 || r.Old != nil || r.NewlyDenied != nil {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff([]simulate.Rule{
		{Rule: "edge.remote_address", File: "rules.yaml", Line: 3, New: &simulate.RuleCount{Requests: 12, Denied: 4, Limits: []simulate.Limit{{Limit: "3 per minute", Over: 4}}}},
		{Rule: "edge.path_/x", File: "rules.yaml", Line: 4, New: &simulate.RuleCount{Requests: 5, Denied: 3, Limits: []simulate.Limit{{Limit: "2 per minute", Over: 3}}}},
	}, r.ByRule); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"edge.unused"}, r.Unreached); diff != "" {
		t.Error(diff)
	}
	first := start.Add(2 * time.Second)
	later := start.Add(3 * time.Second)
	if diff := cmp.Diff(simulate.Customers{Seen: 4, Exact: true, Rows: []simulate.Customer{
		{Customer: "remote_address=b, path=/x", Requests: 5, Denied: 3, First: &first, DeniedBy: []simulate.DeniedBy{
			{Rule: "edge.path_/x", Limit: "2 per minute", Requests: 3}, {Rule: "edge.remote_address", Limit: "3 per minute", Requests: 2},
		}},
		{Customer: "remote_address=a", Requests: 6, Denied: 2, First: &later, DeniedBy: []simulate.DeniedBy{{Rule: "edge.remote_address", Limit: "3 per minute", Requests: 2}}},
		{Customer: "path=/y", Requests: 1},
		{Customer: "remote_address=c", Requests: 1},
	}}, r.Customers); diff != "" {
		t.Error(diff)
	}
	if len(verdicts) != 13 || verdicts[5] != "access.log:6 00:00:02 remote_address=b, path=/x OVER_LIMIT edge.path_/x" || verdicts[10] != "access.log:11 00:01:00 remote_address=a OK " {
		t.Errorf("%q", verdicts)
	}
}

// The report names the rule, and the limit of the rule, that denied a customer most often, not the one that denied it
// last. A rule in shadow mode denies no customer.
func TestDeniedBy(t *testing.T) {
	old := rules(t, "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 100}}\n")
	old.Directory = "old"
	var lines []string
	for i := range 8 {
		lines = append(lines, at(i, "a", "/x"))
	}
	lines = append(lines, at(8, "a", "/y"), at(60, "a", "/y"), at(61, "a", "/y"))
	r := run(t, simulate.Options{
		Rules: rules(t, `domain: edge
descriptors:
- key: remote_address
  rate_limits: [{name: burst, unit: minute, requests_per_unit: 6}, {name: sustained, unit: hour, requests_per_unit: 7}]
- {key: path, value: /x, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: path, value: /y, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
`),
		Against: &old,
	}, lines...)
	var all []simulate.DeniedBy
	for _, c := range r.Customers.Rows {
		all = append(all, c.NewlyDeniedBy...)
		if diff := cmp.Diff(c.DeniedBy, c.NewlyDeniedBy); diff != "" || c.OldDeniedBy != nil {
			t.Errorf("%s: all of it is new\n%s", c.Customer, diff)
		}
	}
	if diff := cmp.Diff([]simulate.DeniedBy{
		{Rule: "edge.path_/x", Limit: "2 per minute", Requests: 6},
		{Rule: "edge.remote_address", Name: "burst", Limit: "6 per minute", Requests: 2}, // the last one to deny
		// The same address asks for /y, which is another customer here.
		{Rule: "edge.remote_address", Name: "burst", Limit: "6 per minute", Requests: 1},
		{Rule: "edge.remote_address", Name: "sustained", Limit: "7 per hour", Requests: 1},
	}, all); diff != "" {
		t.Error(diff)
	}
	var newly []int64
	for _, rule := range r.ByRule {
		newly = append(newly, rule.NewlyDenied)
	}
	if diff := cmp.Diff([]int64{6, 4, 0}, newly); diff != "" {
		t.Errorf("a newly denied request is counted with each rule that denies it: %s", diff)
	}
}

func TestAgainst(t *testing.T) {
	old := rules(t, "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 4}}\n- {key: path, value: /x, rate_limit: {unit: minute, requests_per_unit: 1}}\n")
	old.Directory = "old"
	var lines []string
	for i := range 6 {
		lines = append(lines, at(i, "a", ""), at(i, "", "/x"))
	}
	lines = append(lines, at(7, "b", ""))
	r := run(t, simulate.Options{
		Rules:   rules(t, "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 2}}\n- {key: path, rate_limit: {unit: minute, requests_per_unit: 5}}\n"),
		Against: &old,
	}, lines...)
	if r.New.Denied != 5 || r.Old.Denied != 7 {
		t.Errorf("%+v %+v", r.New, r.Old)
	}
	if diff := cmp.Diff(&simulate.Change{Requests: 2, Customers: 1}, r.NewlyDenied); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&simulate.Change{Requests: 4, Customers: 1}, r.NewlyPassed); diff != "" {
		t.Error(diff)
	}
	type row struct {
		Rule                 string
		Now, Before          int64
		HasNow, HasBefore    bool
		NewlyDenied, NowPass int64
	}
	var rows []row
	for _, b := range r.ByRule {
		x := row{Rule: b.Rule, HasNow: b.New != nil, HasBefore: b.Old != nil, NewlyDenied: b.NewlyDenied, NowPass: b.NewlyPassed}
		if b.New != nil {
			x.Now = b.New.Denied
		}
		if b.Old != nil {
			x.Before = b.Old.Denied
		}
		rows = append(rows, x)
	}
	if diff := cmp.Diff([]row{
		{"edge.remote_address", 4, 2, true, true, 2, 0},
		{"edge.path_/x", 0, 5, false, true, 0, 4},
		{"edge.path", 1, 0, true, false, 0, 0},
	}, rows); diff != "" {
		t.Error(diff)
	}
	first := start.Add(2 * time.Second)
	if diff := cmp.Diff([]simulate.Customer{
		{Customer: "remote_address=a", Requests: 6, Denied: 4, OldDenied: 2, NewlyDenied: 2, First: &first,
			DeniedBy:      []simulate.DeniedBy{{Rule: "edge.remote_address", Limit: "2 per minute", Requests: 4}},
			NewlyDeniedBy: []simulate.DeniedBy{{Rule: "edge.remote_address", Limit: "2 per minute", Requests: 2}},
			OldDeniedBy:   []simulate.DeniedBy{{Rule: "edge.remote_address", Limit: "4 per minute", Requests: 2}}},
		{Customer: "path=/x", Requests: 6, Denied: 1, OldDenied: 5, NewlyPassed: 4,
			DeniedBy:    []simulate.DeniedBy{{Rule: "edge.path", Limit: "5 per minute", Requests: 1}},
			OldDeniedBy: []simulate.DeniedBy{{Rule: "edge.path_/x", Limit: "1 per minute", Requests: 5}}},
		{Customer: "remote_address=b", Requests: 1},
	}, r.Customers.Rows); diff != "" {
		t.Error(diff)
	}
}

// A rule is found in the other directory by its keys and values, not by its path: the key a_b and the key a with the
// value b have the same path.
func TestRulesWithOnePath(t *testing.T) {
	set := rules(t, "domain: edge\ndescriptors:\n- {key: path_/x, rate_limit: {unit: minute, requests_per_unit: 1}}\n- {key: path, value: /x, rate_limit: {unit: minute, requests_per_unit: 1}}\n")
	m := mapping(t, strings.Replace(jsonMapping, "remote_address", "path_/x", 1))
	r := run(t, simulate.Options{Rules: set, Against: &set, Mapping: m}, at(0, "a", ""), at(0, "", "/x"), at(1, "", "/x"))
	if len(r.ByRule) != 2 || r.ByRule[0].New.Requests != 2 || r.ByRule[0].Old.Requests != 2 || r.ByRule[1].New.Requests != 1 {
		t.Errorf("%+v", r.ByRule)
	}
}

// The report includes denials by rules in shadow mode, and requests that passed only because of a global mode.
func TestNotEnforced(t *testing.T) {
	const rule = "domain: edge\ndescriptors:\n- {key: remote_address, %s rate_limit: {unit: minute, requests_per_unit: 2}}\n"
	lines := []string{at(0, "a", ""), at(1, "a", ""), at(2, "a", ""), at(3, "a", "")}
	plain, shadow := rules(t, fmt.Sprintf(rule, "")), rules(t, fmt.Sprintf(rule, "shadow_mode: true,"))
	for name, o := range map[string]simulate.Options{
		"rule":   {Rules: shadow},
		"global": {Rules: plain, Settings: limiter.Settings{Shadow: true}},
		"both":   {Rules: shadow, Settings: limiter.Settings{Shadow: true}},
	} {
		r := run(t, o, lines...)
		if r.New.Denied != 0 || r.New.NotEnforced != 2 || r.ByRule[0].New.NotEnforced != 2 || r.ByRule[0].New.Denied != 0 {
			t.Errorf("%s: %+v %+v", name, r.New, r.ByRule[0].New)
		}
	}
	if r := run(t, simulate.Options{Rules: plain}, lines...); r.New.Denied != 2 || r.New.NotEnforced != 0 || r.ByRule[0].New.NotEnforced != 0 {
		t.Errorf("%+v", r.New)
	}
	// Of two descriptors one in quota mode is over: that denies nothing.
	quota := rules(t, "domain: edge\ndescriptors:\n- {key: remote_address, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}\n- {key: path, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}\n")
	r := run(t, simulate.Options{Rules: quota}, at(0, "a", "/"), at(1, "a", "/"), at(2, "a", "/"), at(3, "a", "/"))
	if r.New.Denied != 1 || r.New.NotEnforced != 2 || r.ByRule[0].New.Denied != 1 || r.ByRule[1].New.Denied != 1 {
		t.Errorf("%+v %+v", r.New, r.ByRule)
	}
}

// Of several limits of a rule each shows how often it denied; a rule that another one replaces shows nothing.
func TestLimitsAndReplaces(t *testing.T) {
	r := run(t, simulate.Options{Rules: rules(t, `
domain: edge
descriptors:
- key: remote_address
  rate_limits:
    - {name: burst, unit: second, unit_multiplier: 10, requests_per_unit: 3}
    - {name: day, unit: day, requests_per_unit: 5}
- key: path
  value: /free
  rate_limit: {unlimited: true, replaces: [{name: burst}, {name: day}]}
`)}, func() (lines []string) {
		for i := range 8 {
			lines = append(lines, at(i*4, "a", ""), at(i*4, "b", "/free"))
		}
		return lines
	}()...)
	got := r.ByRule[0]
	if got.New.Requests != 8 || got.New.Denied != 3 || len(got.New.Limits) != 2 ||
		got.New.Limits[0] != (simulate.Limit{Name: "burst", Limit: "3 per 10 seconds"}) || got.New.Limits[1] != (simulate.Limit{Name: "day", Limit: "5 per day", Over: 3}) {
		t.Errorf("%+v %+v", got.New, got)
	}
	if free := r.ByRule[1]; free.Rule != "edge.path_/free" || free.New.Requests != 8 || r.New.NoRule != 0 {
		t.Errorf("%+v", r.ByRule)
	}
}

// A bucket's burst is shown with its rate, both for the rule and for the customers that it denied. A denial by a
// penalty counts as one by its limit, once for each request.
func TestPenalty(t *testing.T) {
	r := run(t, simulate.Options{Rules: rules(t, `
domain: edge
descriptors:
- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 2, penalty: 10m}}
- {key: path, rate_limit: {unit: minute, requests_per_unit: 100}}
`)}, at(0, "a", ""), at(1, "a", ""), at(2, "a", ""), at(3, "a", ""), at(120, "a", ""), at(601, "a", ""), at(602, "a", ""), at(603, "b", ""))
	if diff := cmp.Diff([]simulate.Limit{{Limit: "2 per minute, penalty 10m", Over: 4}}, r.ByRule[0].New.Limits); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]simulate.DeniedBy{{Rule: "edge.remote_address", Limit: "2 per minute, penalty 10m", Requests: 4}}, r.Customers.Rows[0].DeniedBy); diff != "" {
		t.Error(diff)
	}
}

func TestBursts(t *testing.T) {
	r := run(t, simulate.Options{Rules: rules(t, `
domain: edge
descriptors:
- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: token_bucket, burst: 2}}
- {key: path, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: leaky_bucket, burst: 4}}
`)}, at(0, "a", "/"), at(0, "a", "/"), at(0, "a", "/"))
	if diff := cmp.Diff([]simulate.Limit{{Limit: "1 per minute", Burst: "2", Over: 1}}, r.ByRule[0].New.Limits); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]simulate.Limit{{Limit: "6 per minute", Burst: "4 may wait"}}, r.ByRule[1].New.Limits); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]simulate.DeniedBy{{Rule: "edge.remote_address", Limit: "1 per minute", Burst: "2", Requests: 1}}, r.Customers.Rows[0].DeniedBy); diff != "" {
		t.Error(diff)
	}
}

func TestHits(t *testing.T) {
	m := mapping(t, jsonMapping+"hits: n\n")
	r := run(t, simulate.Options{Mapping: m, Rules: rules(t, "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 10}}\n")},
		`{"t":0,"ip":"a","n":6}`+"\n", `{"t":1,"ip":"a","n":4}`+"\n", `{"t":2,"ip":"a","n":0}`+"\n", `{"t":3,"ip":"a"}`+"\n")
	if r.New.Allowed != 3 || r.New.Denied != 1 {
		t.Errorf("%+v", r.New)
	}
}

func TestDomainsWithoutRules(t *testing.T) {
	r := run(t, simulate.Options{Rules: rules(t, perCustomer(1))}, `{"t":0,"d":"other","ip":"a"}`+"\n", `{"t":0,"d":"","path":"/"}`+"\n")
	if r.New.UnknownDomain != 1 || r.New.NoRule != 1 || r.New.Allowed != 2 || len(r.Warnings) != 1 || !strings.HasPrefix(r.Warnings[0], "the rules of rules match no request at all") {
		t.Errorf("%+v %q", r.New, r.Warnings)
	}
}

// A domain without rules is in the report, with the name that was probably meant.
func TestUnknownDomain(t *testing.T) {
	for asked, want := range map[string]string{
		"egde": "the rules of rules match no request at all: requests have the domain \"egde\", did you mean `edge`?",
		"shop": "the rules of rules match no request at all: requests have the domain \"shop\", the rules have `edge`",
	} {
		r := run(t, simulate.Options{Rules: rules(t, perCustomer(1))}, fmt.Sprintf(`{"t":0,"d":%q,"ip":"a","path":"/"}`+"\n", asked))
		if len(r.Warnings) != 1 || r.Warnings[0] != want {
			t.Errorf("%q, want %q", r.Warnings, want)
		}
	}
}

// Requests outside of the hours of every limit that matches them are not requests without a rule.
func TestLimitsThatAreNotActive(t *testing.T) {
	atNight := rules(t, "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 0, active: {hours: 22:00-06:00}}}\n")
	line := func(hour int, ip string) string {
		return fmt.Sprintf(`{"t":%d,"d":"edge","path":"/"%s}`+"\n", hour*3600, ip)
	}
	night, day := line(0, `,"ip":"a"`), line(12, `,"ip":"a"`)
	for _, c := range []struct {
		lines            []string
		denied, inactive int64
		noRule           int64
		warning          string
	}{
		{[]string{day, day}, 0, 2, 0, "no limit of the rules of rules is active at the time of a request that it matches: compare the times of the log with `active`"},
		{[]string{night, day}, 1, 1, 0, "with the rules of rules 1 of 2 requests pass because no limit that matches them is `active` at their time"},
		{[]string{night, night}, 2, 0, 0, ""},
		{[]string{night, line(12, "")}, 1, 0, 1, ""},
	} {
		r := run(t, simulate.Options{Rules: atNight}, c.lines...)
		if r.New.Denied != c.denied || r.New.Inactive != c.inactive || r.New.NoRule != c.noRule || strings.Join(r.Warnings, "; ") != c.warning {
			t.Errorf("%q: %+v %q, want %+v", c.lines, r.New, r.Warnings, c)
		}
	}
}

// A simulation bounds its counters as the service does, and the report counts the takes that did not fit.
func TestCountersAreBounded(t *testing.T) {
	var lines []string
	for i := range 100 {
		lines = append(lines, at(0, fmt.Sprint(i), ""))
	}
	lines = append(lines, at(90, "late", "")) // the others have expired
	r := run(t, simulate.Options{Rules: rules(t, perCustomer(1)), MaxCounters: 60}, lines...)
	if r.New.Failed != 40 || r.New.Allowed != 61 || !strings.Contains(r.Warnings[len(r.Warnings)-1], "no decision could be made for 40 requests: count hits: count in memory: ") {
		t.Errorf("%+v %q", r.New, r.Warnings)
	}
}

func TestMoreCustomersThanAreKept(t *testing.T) {
	var lines []string
	for i := range 1000 {
		lines = append(lines, at(i, fmt.Sprint("customer", i), ""), at(i, "busy", ""))
	}
	r := run(t, simulate.Options{Rules: rules(t, perCustomer(10)), MaxCustomers: 50}, lines...)
	sum := r.Customers.Others.Requests
	for _, c := range r.Customers.Rows {
		sum += c.Requests
	}
	if r.Customers.Exact || sum != r.Requests || r.Customers.Rows[0].Customer != "remote_address=busy" || r.Customers.Rows[0].Denied != r.New.Denied || r.Customers.Rows[0].Missing != 0 {
		t.Errorf("%+v", r.Customers)
	}
}

func TestBadLines(t *testing.T) {
	lines := []string{at(0, "a", ""), "no\n", "{}\n", at(1, "a", "")}
	r := run(t, simulate.Options{Rules: rules(t, perCustomer(1)), MaxBadLines: 2}, lines...)
	if r.Bad != 2 || r.Lines != 4 || r.Requests != 2 || len(r.FirstBad) != 2 || r.FirstBad[1].String() != `access.log:3: there is no time: "t" is absent` {
		t.Errorf("%+v", r)
	}
	o := simulate.Options{Rules: rules(t, perCustomer(1)), Mapping: mapping(t, jsonMapping), MaxBadLines: 1, Logs: []simulate.Log{log("access.log", strings.NewReader(strings.Join(lines, "")))}}
	_, err := simulate.Run(t.Context(), o)
	var bad *simulate.BadLinesError
	if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), "more than 1 lines cannot be used:\n  access.log:2: not a JSON object") {
		t.Error(err)
	}
	var many strings.Builder
	many.WriteString(at(0, "a", ""))
	for range 100_000 {
		many.WriteString("no\n")
	}
	if r := run(t, simulate.Options{Rules: rules(t, perCustomer(1)), MaxBadLines: -1}, many.String()); r.Bad != 100_000 || len(r.FirstBad) != 20 {
		t.Errorf("%d bad lines, %d are sum", r.Bad, len(r.FirstBad))
	}
}

func TestNothingToReplay(t *testing.T) {
	for log, want := range map[string]string{
		"":               "no line of the log is a request: 0 lines",
		"no\n":           "no line of the log is a request: 1 lines, 1 of them cannot be used, the first: access.log:1: not a JSON object",
		`{"t":0}` + "\n": "no line of the log is a request: 1 lines, 1 of them are skipped by the mapping\n  mapping.yaml:4:17: no line of the log has a field \"d\"",
	} {
		o := simulate.Options{Rules: rules(t, perCustomer(1)), Mapping: mapping(t, jsonMapping), MaxBadLines: -1, Logs: []simulate.Log{{Name: "access.log", Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(log)), nil }}}}
		if _, err := simulate.Run(t.Context(), o); !errors.Is(err, simulate.ErrNoRequest) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", log, err)
		}
	}
}

func TestLogsThatCannotBeRead(t *testing.T) {
	broken := errors.New("broken")
	o := simulate.Options{Rules: rules(t, perCustomer(1)), Mapping: mapping(t, jsonMapping)}
	var wrong *simulate.LogError
	o.Logs = []simulate.Log{{Name: "x", Open: func() (io.ReadCloser, error) { return nil, broken }}}
	if _, err := simulate.Run(t.Context(), o); !errors.Is(err, broken) || !errors.As(err, &wrong) {
		t.Error(err)
	}
	o.Logs = []simulate.Log{log("x", io.MultiReader(strings.NewReader(at(0, "a", "")), failingReader{broken}))}
	if _, err := simulate.Run(t.Context(), o); !errors.Is(err, broken) || !errors.As(err, &wrong) {
		t.Error(err)
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

func TestVerdictsThatCannotBeWritten(t *testing.T) {
	full := errors.New("full")
	o := simulate.Options{
		Rules: rules(t, perCustomer(1)), Mapping: mapping(t, formats[0].mapping), Logs: []simulate.Log{log("x", generate(100_000, 10, envoyLine))},
		Verdicts: func(*simulate.Verdict) error { return full },
	}
	if _, err := simulate.Run(t.Context(), o); !errors.Is(err, full) {
		t.Error(err)
	}
}

func TestStops(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	endless := generate(1<<40, 10, envoyLine)
	o := simulate.Options{
		Rules: rules(t, perCustomer(1)), Mapping: mapping(t, formats[0].mapping), Logs: []simulate.Log{log("x", endless)},
		Progress: func(requests int64) {
			if requests > 10_000 {
				stop()
			}
		},
	}
	if _, err := simulate.Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// It stops also while it waits for more of a log.
func TestStopsWhileReading(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	in, out := io.Pipe()
	defer func() { _ = out.Close() }()
	o := simulate.Options{Rules: rules(t, perCustomer(1)), Mapping: mapping(t, jsonMapping), Logs: []simulate.Log{log("x", in)}}
	go func() {
		_, _ = io.WriteString(out, at(0, "a", ""))
		stop()
	}()
	if _, err := simulate.Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Several logs are one story, and their lines are sum apart.
func TestSeveralLogs(t *testing.T) {
	o := simulate.Options{Rules: rules(t, perCustomer(1)), Mapping: mapping(t, jsonMapping), Window: time.Second}
	o.Logs = []simulate.Log{log("one", strings.NewReader(at(0, "a", ""))), log("two", strings.NewReader(at(50, "a", "")+at(10, "b", "")+at(61, "a", "")))}
	r, err := simulate.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.New.Denied != 1 || r.Order.Late != 1 || r.Order.FirstLate != "two:2" || r.Order.MostLateSeconds < 38 {
		t.Errorf("%+v %+v", r.New, r.Order)
	}
	if !strings.HasPrefix(r.Warnings[len(r.Warnings)-1], "1 lines are older than others before them by up to 38.9") {
		t.Errorf("%q", r.Warnings)
	}
}

// A log whose lines are out of order by less than the window is the same story as the log in order; and however many
// goroutines run, it is too.
func TestOutcomeDoesNotDependOnOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	type line struct {
		text    string
		written time.Duration // when it is
	}
	var lines []line
	for i := range 50_000 {
		happened := time.Duration(i) * time.Millisecond
		text := envoyLine(nil, start.Add(happened), random.IntN(300), random.IntN(20))
		lines = append(lines, line{string(text), happened + time.Duration(random.Int64N(int64(4*time.Second)))})
	}
	report := func(compare bool) (*simulate.Report, string) {
		var text strings.Builder
		for _, l := range lines {
			text.WriteString(l.text)
		}
		set := rules(t, perCustomer(10))
		o := simulate.Options{Rules: set, Mapping: mapping(t, formats[0].mapping), Logs: []simulate.Log{log("x", strings.NewReader(text.String()))}, Window: 5 * time.Second}
		if compare {
			o.Against = &set
		}
		r, err := simulate.Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if r.New.Denied == 0 || r.Order.Late > 0 {
			t.Errorf("%+v %+v", r.New, r.Order)
		}
		sum := *r
		sum.Seconds, sum.PerSec, sum.Order = 0, 0, simulate.Order{}
		json, err := json.Marshal(sum)
		if err != nil {
			t.Fatal(err)
		}
		return r, string(json)
	}
	_, inOrder := report(false)
	slices.SortFunc(lines, func(a, b line) int { return int(a.written - b.written) })
	r, displaced := report(false)
	if r.Order.Reordered < 10_000 || displaced != inOrder {
		t.Errorf("%d lines were put in order, and the reports are\n%s\n%s", r.Order.Reordered, inOrder, displaced)
	}
	same, _ := report(true)
	if same.NewlyDenied.Requests != 0 || same.NewlyPassed.Requests != 0 || same.Old.Denied != same.New.Denied || same.New.Denied != r.New.Denied {
		t.Errorf("rules differ from themselves: %+v %+v", same.NewlyDenied, same.NewlyPassed)
	}
}

func TestLoadRules(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := simulate.LoadRules(filepath.Join(dir, "gone"), false, descriptor.Options{}); err == nil {
		t.Error("a directory that is not there has rules")
	}
	if _, err := simulate.LoadRules(dir, false, descriptor.Options{}); err == nil || !strings.Contains(err.Error(), "there is no rule in it") {
		t.Error(err)
	}
	write("a.yaml", perCustomer(1))
	if tree, err := simulate.LoadRules(dir, false, descriptor.Options{}); err != nil || len(tree.Rules) != 1 {
		t.Error(err)
	}
	write("b.yaml", strings.Replace(perCustomer(1), "remote_address", "other", 1))
	if tree, err := simulate.LoadRules(dir, true, descriptor.Options{}); err != nil || len(tree.Rules) != 2 {
		t.Error(err)
	}
	if _, err := simulate.LoadRules(dir, false, descriptor.Options{}); err == nil || !strings.Contains(err.Error(), "b.yaml:1:9: duplicate domain \"edge\"") {
		t.Error(err)
	}
}

// A log does not contain how long requests were in flight. So they keep their places for the whole ttl, or for
// Options.Duration.
func TestRequestsInFlight(t *testing.T) {
	directory := rules(t, "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {algorithm: concurrency, max_in_flight: 2, ttl: 1m}}\n"+
		"- {key: path, rate_limit: {unit: minute, requests_per_unit: 2}}\n")
	var lines []string
	for second := range 5 {
		lines = append(lines, at(second, "a", ""))
	}
	lines = append(lines, at(60, "a", ""), at(61, "a", ""), at(62, "a", ""))
	for _, c := range []struct {
		lasts   time.Duration
		denied  int64
		warning string
	}{
		{0, 4, "under edge.remote_address (rules of rules) each request keeps its place for the whole `ttl`"},
		{time.Hour, 4, "is assumed to be in flight for 1h0m0s, or for the `ttl` of the rule if that is shorter (--duration)"},
		{2001 * time.Millisecond, 2, "is assumed to be in flight for 2.001s"}, // a third one within two seconds is denied
		{2 * time.Second, 0, "for that long it keeps its place under edge.remote_address"},
	} {
		r := run(t, simulate.Options{Rules: directory, Duration: c.lasts}, lines...)
		if n := r.New.Denied; n != c.denied || r.ByRule[0].New.Limits[0].Over != n || !strings.Contains(strings.Join(r.Warnings, "\n"), c.warning) {
			t.Errorf("%v: %d denied, %+v, %q", c.lasts, n, r.ByRule[0].New, r.Warnings)
		}
	}
	if r := run(t, simulate.Options{Rules: directory}, at(0, "", "/")); strings.Contains(strings.Join(r.Warnings, "\n"), "in flight") {
		t.Errorf("no request takes a place: %q", r.Warnings)
	}
}
