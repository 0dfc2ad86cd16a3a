package regionrpc

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	regionv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/region/v1"
)

// Bounds of a question, besides regions.MaxQueries. They are above what a replica asks.
const (
	maxEntries = 64
	maxText    = 256 << 10 // bytes of a domain, or of all keys and values of a descriptor
	maxGrants  = 32
	maxRegions = 64
)

func encodeQuery(a *regions.Query) *regionv1.Query {
	m := &regionv1.Query{Domain: a.Domain, Limit: a.Limit, Entries: make([]*regionv1.Entry, len(a.Entries))}
	for i, e := range a.Entries {
		m.Entries[i] = &regionv1.Entry{Key: e.Key, Value: e.Value}
	}
	switch {
	case a.Permits != nil:
		q := a.Permits
		p := &regionv1.Question{
			Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Want: q.Want, Need: q.Need,
			Grants: make([]*regionv1.Grant, len(q.Grants)),
		}
		for i := range q.Grants {
			g := &q.Grants[i]
			p.Grants[i] = &regionv1.Grant{
				Incarnation: g.Incarnation, Number: g.Number, Permits: g.Permits, Used: g.Used, Returned: g.Returned,
				Charged: g.Charged, Ends: g.Ends, Expires: g.Expires,
			}
		}
		m.What = &regionv1.Query_Permits{Permits: p}
	case a.Share != nil:
		q := a.Share
		m.What = &regionv1.Query_Share{Share: &regionv1.ShareQuestion{
			Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Held: q.Held, Demand: q.Demand, Returned: q.Returned,
		}}
	default:
		m.What = &regionv1.Query_Hits{Hits: a.Hits}
	}
	return m
}

// tooLarge reports whether a question has more than a server accepts.
func tooLarge(a *regions.Query) bool {
	size := len(a.Domain) + len(a.Limit)
	for _, e := range a.Entries {
		size += len(e.Key) + len(e.Value)
	}
	return len(a.Entries) > maxEntries || size > maxText || a.Permits != nil && len(a.Permits.Grants) > maxGrants
}

// decodeQuery reads a question of a region. Its epoch is that of the call. It returns false if the question is too large, or cannot be
// understood: a newer version may ask other things.
func decodeQuery(m *regionv1.Query, from string, epoch uint64) (regions.Query, bool) {
	a := regions.Query{Domain: m.GetDomain(), Limit: m.GetLimit(), Entries: make([]descriptor.Entry, 0, min(len(m.GetEntries()), maxEntries+1))}
	for _, e := range m.GetEntries()[:cap(a.Entries)] {
		a.Entries = append(a.Entries, descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	switch what := m.GetWhat().(type) {
	case *regionv1.Query_Hits:
		a.Hits = what.Hits
	case *regionv1.Query_Permits:
		q := what.Permits
		a.Permits = &region.Question{
			Region: from, Epoch: epoch, Incarnation: q.GetIncarnation(), Number: q.GetNumber(), Nonce: q.GetNonce(),
			Want: q.GetWant(), Need: q.GetNeed(),
		}
		for _, g := range q.GetGrants()[:min(len(q.GetGrants()), maxGrants+1)] {
			a.Permits.Grants = append(a.Permits.Grants, region.Grant{
				Incarnation: g.GetIncarnation(), Number: g.GetNumber(), Permits: g.GetPermits(), Used: g.GetUsed(), Returned: g.GetReturned(),
				Charged: g.GetCharged(), Ends: g.GetEnds(), Expires: g.GetExpires(),
			})
		}
	case *regionv1.Query_Share:
		q := what.Share
		a.Share = &region.ShareQuestion{
			Region: from, Epoch: epoch, Incarnation: q.GetIncarnation(), Number: q.GetNumber(), Nonce: q.GetNonce(),
			Held: q.GetHeld(), Demand: q.GetDemand(), Returned: q.GetReturned(),
		}
	default:
		return a, false
	}
	return a, len(a.Entries) > 0 && !tooLarge(&a) && a.Hits <= backend.MaxHits && a.Hits >= -backend.MaxHits
}

func encodeReply(t *regions.Reply) *regionv1.Reply {
	switch {
	case t.Outcome != nil:
		o := t.Outcome
		retry := o.RetryAfter.Microseconds()
		if o.RetryAfter == backend.Never {
			retry = never
		}
		return &regionv1.Reply{What: &regionv1.Reply_Outcome{Outcome: &regionv1.Outcome{
			Allowed: o.Allowed, Before: o.Before, Used: o.Used, RetryAfter: retry, MoreAfter: o.MoreAfter.Microseconds(),
			ResetAfter: o.ResetAfter.Microseconds(), Delay: o.Delay.Microseconds(),
		}}}
	case t.Permits != nil:
		a := t.Permits
		return &regionv1.Reply{What: &regionv1.Reply_Permits{Permits: &regionv1.Answer{
			Epoch: a.Epoch, Incarnation: a.Incarnation, Number: a.Number, Nonce: a.Nonce, Result: encodeResult(a.Result), Limit: a.Limit,
			Permits: a.Permits, Charged: a.Charged, Ends: a.Ends, ValidFor: a.ValidFor, Remaining: a.Remaining, RetryAfter: a.RetryAfter,
			Rules: a.Rules,
		}}}
	case t.Share != nil:
		a := t.Share
		return &regionv1.Reply{What: &regionv1.Reply_Share{Share: &regionv1.ShareAnswer{
			Epoch: a.Epoch, Incarnation: a.Incarnation, Number: a.Number, Nonce: a.Nonce, Result: encodeResult(a.Result),
			Rate: a.Rate, Tokens: a.Tokens, Mint: a.Mint, ValidFor: a.ValidFor,
		}}}
	default:
		return &regionv1.Reply{What: &regionv1.Reply_Refused{Refused: string(t.Refused)}}
	}
}

// never is backend.Never on the wire.
const never = -1

// decodeReply reads an answer. It must be of the kind of the question: another one would be from a version that understands the question
// in another way.
func decodeReply(m *regionv1.Reply, query *regions.Query) (regions.Reply, error) {
	var t regions.Reply
	switch what := m.GetWhat().(type) {
	case *regionv1.Reply_Refused:
		t.Refused = regions.Refusal(what.Refused)
	case *regionv1.Reply_Outcome:
		o := what.Outcome
		t.Outcome = &backend.Outcome{
			Allowed: o.GetAllowed(), Before: o.GetBefore(), Used: o.GetUsed(), RetryAfter: micros(o.GetRetryAfter()), MoreAfter: micros(o.GetMoreAfter()),
			ResetAfter: micros(o.GetResetAfter()), Delay: micros(o.GetDelay()),
		}
		if o.GetRetryAfter() == never {
			t.Outcome.RetryAfter = backend.Never
		}
	case *regionv1.Reply_Permits:
		a := what.Permits
		result, err := decodeResult(a.GetResult())
		if err != nil {
			return t, err
		}
		t.Permits = &region.Answer{
			Epoch: a.GetEpoch(), Incarnation: a.GetIncarnation(), Number: a.GetNumber(), Nonce: a.GetNonce(), Result: result, Limit: a.GetLimit(),
			Permits: a.GetPermits(), Charged: a.GetCharged(), Ends: a.GetEnds(), ValidFor: a.GetValidFor(), Remaining: a.GetRemaining(), RetryAfter: a.GetRetryAfter(),
			Rules: a.GetRules(),
		}
	case *regionv1.Reply_Share:
		a := what.Share
		result, err := decodeResult(a.GetResult())
		if err != nil {
			return t, err
		}
		t.Share = &region.ShareAnswer{
			Epoch: a.GetEpoch(), Incarnation: a.GetIncarnation(), Number: a.GetNumber(), Nonce: a.GetNonce(), Result: result,
			Rate: a.GetRate(), Tokens: a.GetTokens(), Mint: a.GetMint(), ValidFor: a.GetValidFor(),
		}
	}
	if t.Refused == regions.NotRefused && (t.Permits != nil) != (query.Permits != nil) || t.Refused == regions.NotRefused && (t.Share != nil) != (query.Share != nil) ||
		t == (regions.Reply{}) {
		return t, fmt.Errorf("an answer of another kind than the question")
	}
	return t, nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func encodeResult(r region.Result) regionv1.Result { return regionv1.Result(r) + 1 }

func decodeResult(r regionv1.Result) (region.Result, error) {
	if r < regionv1.Result_RESULT_GRANTED || r > regionv1.Result_RESULT_STALE {
		return 0, fmt.Errorf("the unknown result %d", r)
	}
	return region.Result(r - 1), nil
}

func encodeEpoch(e *region.Epoch) *regionv1.ConsentRequest {
	return &regionv1.ConsentRequest{Epoch: e.Number, Regions: e.Regions, Before: e.Before, Moved: e.Before != nil, Stopped: e.Stopped}
}

// checkEpoch checks the number of a list of regions. Settings have no larger ones.
func checkEpoch(number uint64) error {
	if number == 0 || number > math.MaxInt64 {
		return fmt.Errorf("the epoch %d, where epochs are from 1 to %d", number, int64(math.MaxInt64))
	}
	return nil
}

// decodeEpoch reads the list of regions in which a region is the home.
func decodeEpoch(m *regionv1.ConsentRequest, home string) (*region.Epoch, error) {
	for _, names := range [][]string{m.GetRegions(), m.GetBefore()} {
		if len(names) > maxRegions {
			return nil, fmt.Errorf("%d regions, %d are the most", len(names), maxRegions)
		}
		for _, name := range names {
			if !descriptor.ValidRegion(name) {
				return nil, fmt.Errorf("the region %.40q: a name has letters from a to z, digits and hyphens", name)
			}
		}
	}
	if err := checkEpoch(m.GetEpoch()); err != nil {
		return nil, err
	}
	e := &region.Epoch{Number: m.GetEpoch(), Home: home, Regions: m.GetRegions(), Stopped: m.GetStopped()}
	if m.GetMoved() {
		e.Before = append([]string{}, m.GetBefore()...) // not nil, which means that nothing moved
	}
	return e, nil
}
