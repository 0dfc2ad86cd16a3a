package explain

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Options are a request and the rules for it.
type Options struct {
	Tree      *descriptor.Tree // the rules; required
	Settings  limiter.Settings
	KeyPrefix string // prefix of every counter's key
	Overrides *override.Set

	Domain      string
	Descriptors []limiter.Descriptor // their hits are ignored
	Now         time.Time            // when the request arrives

	// QuotaBucket means that the descriptors are the ids of quota buckets, with their pairs in the order of the domain.
	QuotaBucket bool
}

// Run explains one request. It returns a limiter.InvalidError for a request that no server would answer, such as one
// without a descriptor.
func Run(ctx context.Context, o Options) (*Report, error) {
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}),
		Keys: descriptor.KeyBuilder{Prefix: o.KeyPrefix}})
	l.Swap(o.Tree, o.Settings)
	l.SetOverrides(o.Overrides)
	x := explainer{o: &o, limiter: l, domain: o.Tree.Domain(o.Domain)}
	return x.run(ctx)
}

type explainer struct {
	o       *Options
	limiter *limiter.Limiter
	domain  *descriptor.Domain // nil if it has no rules
}

func (x *explainer) run(ctx context.Context) (*Report, error) {
	r := &Report{Domain: x.o.Domain, Known: x.domain != nil, Passing: []Header{}, Denied: []Header{}}
	if !r.Known {
		r.DidYouMean = closestDomain(x.o.Tree, x.o.Domain)
	}
	if x.o.QuotaBucket {
		r.QuotaBucket = quotaBucket(x.domain)
	}
	r.Admission = x.admission()
	first, err := x.decide(ctx, nil)
	if err != nil {
		return nil, err
	}
	for i := range x.o.Descriptors {
		d, err := x.descriptor(ctx, &x.o.Descriptors[i])
		if err != nil {
			return nil, err
		}
		d.Replaced = !d.inactive() && d.Rule != nil && len(d.Limits) > 0 && !first.Statuses[i].Limited &&
			!first.Statuses[i].Overridden
		r.Descriptors = append(r.Descriptors, d)
	}
	r.HeadersAsked = x.headersAsked()
	if r.Passes = first.Code == limiter.OK; r.Passes { // otherwise a limit is 0
		r.Passing = headers(first)
		if first, err = x.exhaust(ctx, first); err != nil {
			return nil, err
		}
	}
	if r.Denies = first.Code == limiter.OverLimit; r.Denies {
		r.Denied = headers(first)
	}
	return r, nil
}

// decide decides the request with these hits for each descriptor, or with one hit if hits is nil.
func (x *explainer) decide(ctx context.Context, hits []uint64) (*limiter.Decision, error) {
	req := &limiter.Request{Domain: x.o.Domain}
	for i, d := range x.o.Descriptors {
		d.Hits, d.HasHits, d.Refund = 1, true, false
		if hits != nil {
			d.Hits = hits[i]
			// a reservation need not be as large as the remaining hits
			if x.domain != nil && x.domain.MatchNamed(d.Entries) != nil {
				d.Entries = d.Entries[:len(d.Entries)-1]
			}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	answer := &limiter.Decision{}
	err := x.limiter.Decide(ctx, x.o.Now, req, answer)
	return answer, err
}

// exhaust takes all remaining hits of the last answer, and decides once more.
func (x *explainer) exhaust(ctx context.Context, last *limiter.Decision) (*limiter.Decision, error) {
	hits := make([]uint64, len(last.Statuses))
	for i := range hits {
		hits[i] = last.Statuses[i].Remaining
		if rule := last.Statuses[i].Rule; rule != nil {
			hits[i] /= rule.HitCostOf(x.o.Descriptors[i].Entries)
		}
	}
	if _, err := x.decide(ctx, hits); err != nil {
		return nil, err
	}
	return x.decide(ctx, nil)
}

func (x *explainer) headersAsked() bool {
	if x.domain != nil && x.domain.Headers != nil {
		return x.domain.Headers.Families != 0 || len(x.domain.Headers.Own) > 0
	}
	return x.o.Settings.Headers != 0
}

func headers(d *limiter.Decision) []Header {
	all := []Header{}
	for _, h := range d.Headers {
		all = append(all, Header{h.Key, h.Value})
	}
	return all
}

func (x *explainer) descriptor(ctx context.Context, asked *limiter.Descriptor) (Descriptor, error) {
	found, err := x.limiter.Peek(ctx, x.o.Now, x.o.Domain, asked)
	if err != nil {
		return Descriptor{}, err
	}
	e := &found.Explanation
	d := Descriptor{Entries: []Entry{}, Levels: []Level{}, Limits: []Limit{}, FromRequest: found.FromRequest}
	for _, entry := range asked.Entries {
		d.Entries = append(d.Entries, Entry{entry.Key, entry.Value})
	}
	for i := range e.Levels {
		d.Levels = append(d.Levels, level(&e.Levels[i]))
	}
	d.Matched = e.Rule != nil || found.FromRequest
	if !d.Matched {
		d.Reason = e.Reason
		d.DidYouMean = entries.Guess(asked.Entries, e)
	}
	if e.Rule != nil && !found.FromRequest {
		d.Rule = x.rule(e.Rule)
		if found.HitCost > 1 {
			d.Rule.HitCost = found.HitCost
		}
	}
	if found.Override != nil {
		d.Override = found.Override.Words()
	}
	for i := range found.List {
		d.Limits = append(d.Limits, limit(&found.List[i], x.o.Now))
	}
	return d, nil
}

func level(l *descriptor.ExplainedLevel) Level {
	out := Level{Entry: Entry{l.Entry.Key, l.Entry.Value}, Candidates: []Candidate{}, Reason: l.Reason}
	for _, c := range l.Candidates {
		out.Candidates = append(out.Candidates, Candidate{c.Kind.String(), c.Value, c.Matched, c.Reason})
	}
	return out
}

// inactive reports whether none of the rule's limits applies at the time of the request.
func (d *Descriptor) inactive() bool {
	for i := range d.Limits {
		if !d.Limits[i].Inactive {
			return false
		}
	}
	return len(d.Limits) > 0
}

func limit(c *limiter.Counter, now time.Time) Limit {
	l := &c.Limit
	return Limit{
		Inactive:      c.Inactive,
		Name:          l.Name,
		Words:         c.Words(),
		Requests:      l.Requests,
		Unit:          l.Window.Unit.String(),
		Multiplier:    max(l.Window.Multiplier, 1),
		WindowSeconds: l.Window.LengthAt(now).Seconds(),
		Algorithm:     l.Algorithm.String(),
		Capacity:      l.Capacity(),
		Key:           c.Key,

		EnforcePercent: l.EnforcePercent,
		Class:          c.Class(),
		NotEnforced:    c.Unenforced,
	}
}

func (x *explainer) rule(r *descriptor.Rule) *Rule {
	flag := func(rule, server bool) Choice {
		switch {
		case rule:
			return Choice{"true", "rule"}
		case server:
			return Choice{"true", "server"}
		default:
			return Choice{"false", "rule"}
		}
	}
	return &Rule{
		Path: r.Path, Name: r.Name, File: r.Position.File, Line: r.Position.Line, Column: r.Position.Col,
		Unlimited: r.Unlimited, Replaces: r.Replaces,
		Shadow:  flag(r.Shadow, x.o.Settings.Shadow),
		Quota:   flag(r.Quota, x.o.Settings.Quota),
		OnError: x.onError(r),
	}
}

func (x *explainer) onError(r *descriptor.Rule) Choice {
	switch {
	case r.OnError != descriptor.OnErrorDefault:
		return Choice{descriptor.OnErrorNames[r.OnError], "rule"}
	case x.domain.OnError != descriptor.OnErrorDefault:
		return Choice{descriptor.OnErrorNames[x.domain.OnError], "domain"}
	case x.o.Settings.OnError != descriptor.OnErrorDefault:
		return Choice{descriptor.OnErrorNames[x.o.Settings.OnError], "server"}
	default:
		return Choice{descriptor.OnErrorNames[descriptor.OnErrorError], "server"}
	}
}

func quotaBucket(d *descriptor.Domain) *QuotaBucket {
	q := &QuotaBucket{Order: []string{}, Default: "allow"}
	if d != nil && d.QuotaBuckets != nil {
		q.Order = append(q.Order, d.QuotaBuckets.Order...)
	}
	if d.DefaultDenies() {
		q.Default = "deny"
	}
	return q
}

func (x *explainer) admission() Choice {
	switch {
	case x.domain != nil && x.domain.Admission != descriptor.AdmissionDefault:
		return Choice{descriptor.AdmissionNames[x.domain.Admission], "domain"}
	case x.o.Settings.Admission != descriptor.AdmissionDefault:
		return Choice{descriptor.AdmissionNames[x.o.Settings.Admission], "server"}
	default:
		return Choice{descriptor.AdmissionNames[descriptor.Independent], "server"}
	}
}
