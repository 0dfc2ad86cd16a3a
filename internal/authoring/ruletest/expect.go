package ruletest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// observed is the result of a step so far.
type observed struct {
	testCase      *testCase
	step          *step
	number, steps int // the step's number, from 1, and how many the case has

	nth      int           // number among the repeated requests, from 1
	offset   time.Duration // time since the case's start
	decision limiter.Decision
	passed   int
	rules    []*descriptor.Rule // matching rule of each descriptor, nil without a match
	wrong    bool               // an expectation for every request failed and is reported
	failures []Failure
}

func (o *observed) match(d *descriptor.Domain, req *limiter.Request) {
	o.rules = make([]*descriptor.Rule, len(req.Descriptors))
	for i := range req.Descriptors {
		entries := req.Descriptors[i].Entries
		if o.rules[i] = d.MatchNamed(entries); o.rules[i] == nil {
			o.rules[i] = d.Match(entries)
		}
	}
}

// fromRequest reports whether the limit of a descriptor is the one that the request carried.
func (o *observed) fromRequest(i int) bool {
	st := &o.decision.Statuses[i]
	return o.step.request.Descriptors[i].HasLimit && st.Rule == nil && st.Limited
}

// rule returns the rule that matches a descriptor, or nil if no rule does or the request carried the limit.
func (o *observed) rule(i int) *descriptor.Rule {
	if o.fromRequest(i) {
		return nil
	}
	return o.rules[i]
}

// replaced reports whether another rule replaced a descriptor's rule: it has limits, and none of them applied.
func (o *observed) replaced(i int) bool {
	r, st := o.rule(i), &o.decision.Statuses[i]
	return r != nil && !r.Unlimited && len(r.Limits) > 0 && !st.Limited && !st.Overridden
}

func (o *observed) sawRules(to *reach) {
	for i := range o.rules {
		if r := o.rule(i); r != nil && !o.replaced(i) {
			to.hit[r.Index] = true
		}
	}
}

// answer is the answer to a request or to one of its descriptors.
type answer struct {
	limiter.Status
	descriptor int // index of its descriptor; -1 if none decided

	wouldDeny []string // the names of the limits that would have denied, if they were enforced
}

// whole returns the answer to the request: the limit that decided, as in the headers of clients, and the longest times.
func (o *observed) whole() answer {
	d := &o.decision
	a := answer{descriptor: 0}
	if len(d.Statuses) > 1 {
		a.descriptor = -1
		if decision, ok := d.Metadata["decision"].(map[string]any); ok {
			a.descriptor, _ = decision["descriptor"].(int)
		}
	}
	if a.descriptor >= 0 {
		a.Status = d.Statuses[a.descriptor]
	}
	a.Code, a.RetryAfter, a.Delay = d.Code, 0, d.Delay
	a.wouldDeny = o.unenforced(-1)
	for i := range d.Statuses {
		st := &d.Statuses[i]
		if d.Code == limiter.OverLimit && st.Code == limiter.OverLimit &&
			a.RetryAfter != backend.Never && (st.RetryAfter == backend.Never || st.RetryAfter > a.RetryAfter) {
			a.RetryAfter = st.RetryAfter
		}
	}
	return a
}

func (o *observed) of(i int) answer {
	return answer{Status: o.decision.Statuses[i], descriptor: i, wouldDeny: o.unenforced(i)}
}

// unenforced returns the names of the limits of a descriptor that would have denied; of all descriptors if i is
// negative.
func (o *observed) unenforced(i int) []string {
	var names []string
	for _, n := range o.decision.Notices {
		if n.Kind != limiter.NoticeWarn && (i < 0 || n.Descriptor == i) {
			names = append(names, n.Name)
		}
	}
	return names
}

// check compares the answer to a request with the expectations.
func (o *observed) check() {
	w := &o.step.want
	last := o.nth == o.step.repeat
	if o.decision.Code == limiter.OK {
		o.passed++
	}
	if !last && o.wrong {
		return
	}
	var diff differences
	whole := o.whole()
	if !o.wrong {
		diff.always(&w.verdict, o, whole, "")
		for i := range w.descriptors {
			diff.always(&w.descriptors[i], o, o.of(i), fmt.Sprintf("descriptor %d: ", i+1))
		}
		o.wrong = len(diff) > 0
	}
	if last {
		diff.finally(&w.verdict, whole, "")
		for i := range w.descriptors {
			diff.finally(&w.descriptors[i], o.of(i), fmt.Sprintf("descriptor %d: ", i+1))
		}
		if w.passed != nil && w.passed.value != o.passed {
			diff.add(w.passed.at, "passed", fmt.Sprintf("%d of %d", w.passed.value, o.step.repeat),
				fmt.Sprintf("%d of %d", o.passed, o.step.repeat))
		}
		diff.headers(w.headers, o.decision.Headers)
	}
	if len(diff) > 0 {
		o.fail(diff, "")
	}
}

type differences []Difference

func (d *differences) add(at yamlform.Position, what, expected, got string) {
	*d = append(*d, Difference{Line: at.Line, Col: at.Col, What: what, Want: expected, Got: got})
}

// always compares the expectations for each of the repeated requests.
func (d *differences) always(w *verdict, o *observed, a answer, of string) {
	if w.code != nil && w.code.value != a.Code {
		d.add(w.code.at, of+"code", w.code.value.String(), a.Code.String())
	}
	if w.rule != nil {
		if names := o.names(a); !slices.Contains(names, w.rule.value) {
			d.add(w.rule.at, of+"rule", w.rule.value, names[0])
		}
	}
	if w.overridden != nil && w.overridden.value != a.Overridden {
		d.add(w.overridden.at, of+"overridden", strconv.FormatBool(w.overridden.value), strconv.FormatBool(a.Overridden))
	}
	if w.wouldDeny != nil && !sameNames(w.wouldDeny.value, a.wouldDeny) {
		d.add(w.wouldDeny.at, of+"would_deny", namesText(w.wouldDeny.value), namesText(a.wouldDeny))
	}
	if w.limit != nil && (!a.Limited || w.limit.value != a.Limit.Requests) {
		got := "no limit"
		if a.Limited {
			got = uintText(a.Limit.Requests)
		}
		d.add(w.limit.at, of+"limit", uintText(w.limit.value), got)
	}
}

// sameNames reports whether two lists have the same names, in any order.
func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// finally compares the expectations for the last of the repeated requests.
func (d *differences) finally(w *verdict, a answer, of string) {
	if w.remaining != nil && w.remaining.value != a.Remaining {
		d.add(w.remaining.at, of+"remaining", uintText(w.remaining.value), uintText(a.Remaining))
	}
	for _, t := range [...]struct {
		what string
		want *want[time.Duration]
		got  time.Duration
	}{{"reset", w.reset, a.Reset}, {"wait", w.wait, a.RetryAfter}, {"delay", w.delay, a.Delay}} {
		if t.want != nil && t.want.value != t.got {
			d.add(t.want.at, of+t.what, waitText(t.want.value), waitText(t.got))
		}
	}
}

func (d *differences) headers(wanted []wantHeader, got []limiter.Header) {
	for _, w := range wanted {
		expected, came := "absent", "absent"
		if w.value != nil {
			expected = strconv.Quote(*w.value)
		}
		for _, h := range got {
			if strings.EqualFold(h.Key, w.name) {
				came = strconv.Quote(h.Value)
			}
		}
		if expected != came {
			d.add(w.at, "header "+w.name, expected, came)
		}
	}
}

// names returns the names of the rule behind an answer. Messages use the first one.
func (o *observed) names(a answer) []string {
	if a.descriptor < 0 {
		return []string{noRule}
	}
	if o.fromRequest(a.descriptor) {
		return []string{ofRequest}
	}
	r := o.rule(a.descriptor)
	if r == nil || o.replaced(a.descriptor) {
		return []string{noRule}
	}
	names := []string{r.Path, strings.TrimPrefix(r.Path, r.Domain+".")}
	for _, n := range []string{r.Name, a.Limit.Name} {
		if n != "" {
			names = append(names, n)
		}
	}
	return names
}

// fail notes a failure with the state of all counters.
func (o *observed) fail(diff differences, problem string) {
	f := Failure{
		Line: o.step.at.Line, Col: o.step.at.Col,
		Step: o.number, Steps: o.steps, Request: o.nth, Requests: o.step.repeat,
		Offset: formatSpan(o.offset), Time: o.testCase.start.Add(o.offset),
		Problem: problem, Differences: diff,
	}
	slices.SortStableFunc(diff, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	if len(diff) > 0 {
		f.Line, f.Col = diff[0].Line, diff[0].Col
	}
	for i := range o.step.request.Descriptors {
		f.Asked = append(f.Asked, askedText(&o.step.request, i))
		if problem == "" {
			f.State = append(f.State, o.state(i))
		}
	}
	o.failures = append(o.failures, f)
}

func askedText(req *limiter.Request, i int) string {
	d := &req.Descriptors[i]
	text := entries.Format(d.Entries)
	switch {
	case d.Refund:
		text += fmt.Sprintf(" (refund of %d)", d.Hits)
	case d.HasHits && d.Hits == 0:
		text += " (peek)"
	case d.HasHits:
		text += fmt.Sprintf(" (%d hits)", d.Hits)
	case req.Hits > 1:
		text += fmt.Sprintf(" (%d hits)", req.Hits)
	}
	if d.HasLimit {
		text += fmt.Sprintf(" (limit: %d per %s)", d.Limit.Requests, descriptor.Unit(d.Limit.Unit))
	}
	return text
}

func (o *observed) state(i int) State {
	a := o.of(i)
	s := State{Code: a.Code.String(), Remaining: a.Remaining, Rule: o.names(a)[0], Overridden: a.Overridden}
	if r := o.rule(i); r != nil {
		s.File, s.Line, s.Col = r.Position.File, r.Position.Line, r.Position.Col
		s.Unlimited, s.Shadow = r.Unlimited || a.Overridden && !a.Limited, r.Shadow
		if o.replaced(i) {
			s.Replaced = r.Path
		}
	}
	if !a.Limited {
		return s
	}
	s.Limit = uintText(a.Limit.Requests)
	if a.Limit.Unit.Valid() && a.Limit.Multiplier <= 1 {
		s.Limit += " per " + a.Limit.Unit.String()
	} else if l := o.limitNamed(i, a.Limit); l != nil && l.Algorithm == descriptor.Concurrency {
		s.Limit += " in flight"
	} else if l != nil {
		s.Limit += " per " + l.Window.Words() + l.Window.CalendarWords()
	}
	s.Name = a.Limit.Name
	s.Reset, s.Wait, s.Delay = formatSpan(a.Reset), waitText(a.RetryAfter), formatSpan(a.Delay)
	return s
}

// limitNamed returns the limit of a descriptor's rule that a status is about, nil if it is unknown.
func (o *observed) limitNamed(i int, c limiter.CurrentLimit) *descriptor.Limit {
	if o.rule(i) == nil {
		return nil
	}
	limits := o.rules[i].Limits
	for j := range limits {
		unit, multiplier := limits[j].OnWire()
		if limits[j].Name == c.Name && (limits[j].Requests == c.Requests || o.decision.Statuses[i].Overridden) &&
			unit == c.Unit && multiplier == c.Multiplier {
			return &limits[j]
		}
	}
	return nil
}

func namesText(names []string) string { return "[" + strings.Join(names, ", ") + "]" }

func uintText(n uint64) string { return strconv.FormatUint(n, 10) }

func waitText(d time.Duration) string {
	if d == backend.Never {
		return never
	}
	return formatSpan(d)
}
