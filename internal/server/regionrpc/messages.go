package regionrpc

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	regionv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/region/v1"
)

// Bounds of a query, in addition to regions.MaxTakes. They are above the queries of a replica.
const (
	maxEntries = 1024      // entries of a descriptor
	maxText    = 256 << 10 // bytes of a domain and all keys and values
)

func encodeQuery(q *regions.Query) *regionv1.Query {
	m := &regionv1.Query{
		Domain: q.Domain, Together: q.Together, PeekWhenKnown: q.PeekWhenKnown, Look: q.Look,
		Descriptors: make([]*regionv1.Descriptor, len(q.Descriptors)), Takes: make([]*regionv1.Take, len(q.Takes)),
	}
	for i, entries := range q.Descriptors {
		d := &regionv1.Descriptor{Entries: make([]*regionv1.Entry, len(entries))}
		for j, e := range entries {
			d.Entries[j] = &regionv1.Entry{Key: e.Key, Value: e.Value}
		}
		m.Descriptors[i] = d
	}
	for i := range q.Takes {
		t := &q.Takes[i]
		m.Takes[i] = &regionv1.Take{
			Member: uint32(t.Descriptor), Limit: t.Limit, Hits: t.Hits, Vote: regionv1.Vote(t.Vote), CountDenied: t.CountDenied,
			Settled: t.Settled, Guards: t.Guards, Shadow: t.Shadow, Ends: t.Ends, Commits: t.Commits,
		}
	}
	return m
}

// tooLarge reports whether a query exceeds the bounds of a server.
func tooLarge(q *regions.Query) bool {
	if len(q.Takes) == 0 || len(q.Takes) > regions.MaxTakes || len(q.Descriptors) > regions.MaxTakes {
		return true
	}
	size := len(q.Domain)
	for _, entries := range q.Descriptors {
		for _, e := range entries {
			size += len(e.Key) + len(e.Value)
		}
		if len(entries) > maxEntries || size > maxText {
			return true
		}
	}
	for i := range q.Takes {
		size += len(q.Takes[i].Limit)
	}
	return size > maxText
}

// decodeQuery decodes a query. It returns false if the query is too large, or not valid: a newer version may ask
// differently.
func decodeQuery(m *regionv1.Query) (*regions.Query, bool) {
	if len(m.GetTakes()) > regions.MaxTakes || len(m.GetDescriptors()) > regions.MaxTakes {
		return nil, false
	}
	q := &regions.Query{
		Domain: m.GetDomain(), Together: m.GetTogether(), PeekWhenKnown: m.GetPeekWhenKnown(), Look: m.GetLook(),
		Descriptors: make([][]descriptor.Entry, len(m.GetDescriptors())), Takes: make([]regions.Take, len(m.GetTakes())),
	}
	for i, d := range m.GetDescriptors() {
		if len(d.GetEntries()) > maxEntries {
			return nil, false
		}
		q.Descriptors[i] = make([]descriptor.Entry, len(d.GetEntries()))
		for j, e := range d.GetEntries() {
			q.Descriptors[i][j] = descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()}
		}
	}
	for i, t := range m.GetTakes() {
		if t.GetVote() < 0 || t.GetVote() > regionv1.Vote_VOTE_NONE || t.GetMember() > regions.MaxTakes {
			return nil, false
		}
		q.Takes[i] = regions.Take{
			Descriptor: int(t.GetMember()), Limit: t.GetLimit(), Hits: t.GetHits(), Vote: backend.Vote(t.GetVote()),
			CountDenied: t.GetCountDenied(), Settled: t.GetSettled(), Guards: t.GetGuards(), Shadow: t.GetShadow(),
			Ends: t.GetEnds(), Commits: t.GetCommits(),
		}
	}
	return q, !tooLarge(q)
}

// never is backend.Never on the wire.
const never = -1

func encodeAnswer(query int, a *regions.Answer) *regionv1.Answer {
	m := &regionv1.Answer{
		Query: uint32(query), Rejected: string(a.Rejected), OtherHome: a.Home,
		Outcomes: make([]*regionv1.Outcome, len(a.Outcomes)),
	}
	for i := range a.Outcomes {
		o := &a.Outcomes[i]
		if o.Failed {
			m.Outcomes[i] = &regionv1.Outcome{Failed: true}
			continue
		}
		retry := o.RetryAfter.Microseconds()
		if o.RetryAfter == backend.Never {
			retry = never
		}
		m.Outcomes[i] = &regionv1.Outcome{
			Allowed: o.Allowed, Before: o.Before, Used: o.Used, Kept: o.Kept, RetryAfter: retry,
			MoreAfter:  o.MoreAfter.Microseconds(),
			ResetAfter: o.ResetAfter.Microseconds(), PartEnds: o.PartEnds.Microseconds(), Delay: o.Delay.Microseconds(),
		}
		if l := a.Limits[i]; l != nil {
			m.Outcomes[i].Limit = &regionv1.Limit{
				Requests: l.Requests, Burst: l.Burst, Algorithm: uint32(l.Algorithm), Unit: uint32(l.Window.Unit),
				Multiplier: l.Window.Multiplier,
			}
		}
	}
	return m
}

func decodeAnswer(m *regionv1.Answer) *regions.Answer {
	a := &regions.Answer{
		Rejected: knownRejection(regions.Rejection(m.GetRejected())),
		Outcomes: make([]backend.Outcome, len(m.GetOutcomes())), Limits: make([]*descriptor.Limit, len(m.GetOutcomes())),
	}
	if home := m.GetOtherHome(); descriptor.ValidRegion(home) {
		a.Home = home
	}
	for i, o := range m.GetOutcomes() {
		a.Outcomes[i] = backend.Outcome{
			Failed: o.GetFailed(), Allowed: o.GetAllowed(), Before: count(o.GetBefore()), Used: count(o.GetUsed()),
			Kept:       count(o.GetKept()),
			RetryAfter: span(o.GetRetryAfter()), MoreAfter: span(o.GetMoreAfter()), ResetAfter: span(o.GetResetAfter()),
			PartEnds: span(o.GetPartEnds()), Delay: span(o.GetDelay()),
		}
		if o.GetRetryAfter() == never {
			a.Outcomes[i].RetryAfter = backend.Never
		}
		l := o.GetLimit()
		if l == nil || l.GetAlgorithm() > uint32(descriptor.SharedWindow) || l.GetUnit() > uint32(descriptor.Millisecond) ||
			l.GetRequests() > descriptor.MaxRequests || l.GetBurst() > descriptor.MaxRequests {
			continue // a newer version: the asking region's numbers are shown
		}
		a.Limits[i] = &descriptor.Limit{
			Requests: l.GetRequests(), Burst: l.GetBurst(), Algorithm: descriptor.Algorithm(l.GetAlgorithm()),
			Window: descriptor.Window{Unit: descriptor.Unit(l.GetUnit()), Multiplier: l.GetMultiplier()},
		}
	}
	return a
}

// knownRejection returns a rejection that clients, operators and the log may see. Any other text becomes Invalid.
func knownRejection(r regions.Rejection) regions.Rejection {
	switch r {
	case regions.NotRejected, regions.NoRule, regions.Unavailable:
		return r
	default:
		return regions.Invalid
	}
}

// count and span limit numbers from another region, so that sums of them do not overflow.
func count(n int64) int64 { return min(max(n, 0), backend.MaxCount) }

func span(n int64) time.Duration {
	const longest = 200 * 365 * 24 * time.Hour
	return time.Duration(min(max(n, 0), longest.Microseconds())) * time.Microsecond
}
