package backendtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// model is the plainest store: a map of states, and backend.Settle.
type model map[string]*backend.State

func (m model) take(now time.Time, r *backend.Request) []backend.Outcome {
	outcomes := make([]backend.Outcome, len(r.Takes))
	states := make([]*backend.State, len(r.Takes))
	for i, t := range r.Takes {
		if m[string(t.Key)] == nil {
			m[string(t.Key)] = new(backend.State)
		}
		states[i] = m[string(t.Key)]
	}
	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		backend.Settle(r.Takes[start:end], states[start:end], outcomes[start:end], now.UnixMicro())
		start = end
	}
	return outcomes
}

// modelWindows are the windows that the property uses. Times stay within a minute, because a store need not tell a
// window of a second from one that is hours away when the clock goes back.
var modelWindows = []descriptor.Window{
	{Unit: descriptor.Second},
	{Unit: descriptor.Second, Multiplier: 7},
	{Unit: descriptor.Minute},
	{Unit: descriptor.Year},
}

// runModel checks on random requests that a store answers as the model does, and that what it keeps is the same.
func runModel(t *testing.T, open func(t testing.TB) Store) {
	s := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		prefix, m := newCase(), model{}
		var keys []backend.Take // of the peeks that compare what is kept
		for i, w := range modelWindows {
			for j := range 2 {
				l := &descriptor.Limit{Requests: 5, Window: w}
				keys = append(keys, backend.Take{Key: fmt.Appendf(nil, "%s%d|%d", prefix, j, i), Limit: l, Member: len(keys)})
			}
		}
		now := epoch.UnixMicro() - 2_000_000 // a year ends two seconds later
		for step := range rapid.IntRange(1, 30).Draw(rt, "requests") {
			if rapid.IntRange(0, 2).Draw(rt, "clock") == 0 {
				now = epoch.UnixMicro() + rapid.OneOf(
					rapid.Int64Range(-2_000_000, 50_000_000),
					rapid.Map(rapid.Int64Range(0, 20), func(s int64) int64 { return s * 1_000_000 }),
					rapid.Map(rapid.Int64Range(0, 20), func(s int64) int64 { return s*1_000_000 - 1 }),
				).Draw(rt, "now")
			}
			at := time.UnixMicro(now)
			r := drawRequest(rt, keys)
			compare(rt, step, "request", s, m, at, r)

			peeks := &backend.Request{Takes: keys, Outcomes: make([]backend.Outcome, len(keys))}
			compare(rt, step, "peek", s, m, at, peeks)
		}
	})
}

func compare(t *rapid.T, step int, what string, s Store, m model, at time.Time, r *backend.Request) {
	want := m.take(at, r)
	if err := s.Take(context.Background(), at, r); err != nil {
		t.Fatalf("step %d: %v", step, err)
	}
	if slices.Equal(want, r.Outcomes) {
		return
	}
	for i, take := range r.Takes {
		t.Logf("%s at %v, together %v, take %d: %s %d/%v, %d hits, member %d, vote %d, count_denied %v\n want %s\n got  %s",
			what, at.Sub(epoch), r.Together, i, take.Key, take.Limit.Requests, take.Limit.Window.Length(), take.Hits, take.Member,
			take.Vote, take.CountDenied, outcomeText(&want[i]), outcomeText(&r.Outcomes[i]))
	}
	t.Fatalf("step %d: the store and the model disagree", step)
}

func drawRequest(t *rapid.T, keys []backend.Take) *backend.Request {
	r := &backend.Request{Together: rapid.Bool().Draw(t, "together")}
	n := rapid.OneOf(rapid.Just(1), rapid.IntRange(1, 6)).Draw(t, "takes")
	for i := range n {
		k := rapid.SampledFrom(keys).Draw(t, "key")
		take := backend.Take{
			Key: k.Key,
			Limit: &descriptor.Limit{
				Requests: rapid.OneOf(rapid.Uint32Range(0, 6), rapid.SampledFrom([]uint32{100, math.MaxUint32})).Draw(t, "limit"),
				Window:   k.Limit.Window,
			},
			Hits: rapid.OneOf(
				rapid.Int64Range(-3, 4), rapid.Int64Range(1, 2),
				rapid.SampledFrom([]int64{backend.MaxHits, -backend.MaxHits, backend.MaxHits - 1}),
			).Draw(t, "hits"),
			CountDenied: rapid.Bool().Draw(t, "count_denied"),
		}
		if i > 0 {
			before := r.Takes[i-1]
			take.Member, take.Vote = before.Member, before.Vote
		}
		if i == 0 || rapid.Bool().Draw(t, "member") {
			take.Member++
			take.Vote = rapid.SampledFrom([]backend.Vote{backend.VoteAll, backend.VoteAny, backend.VoteNone}).Draw(t, "vote")
		}
		r.Takes = append(r.Takes, take)
	}
	// Now and then one counter is filled to the brim.
	if rapid.IntRange(0, 19).Draw(t, "fill") == 0 {
		for range 260 {
			take := r.Takes[len(r.Takes)-1]
			take.Hits, take.CountDenied, take.Member = backend.MaxHits, true, take.Member+1
			r.Takes = append(r.Takes, take)
		}
	}
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	return r
}
