package backend_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// places is a store with several parts. The first letter of a key selects its part.
type places map[byte]*memory.Store

func (p places) take(t *testing.T, now time.Time, r *backend.Request) []backend.Outcome {
	t.Helper()
	var missing atomic.Bool
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	err := backend.Split(t.Context(), r,
		func(t *backend.Take) byte { return t.Key[0] },
		func(ctx context.Context, at byte, part *backend.Request) error {
			store := p[at]
			if store == nil {
				missing.Store(true)
				for i := range part.Outcomes {
					part.Outcomes[i] = backend.Outcome{Failed: true}
				}
				return backend.ErrUnavailable
			}
			return backend.Await(ctx, store, now, part)
		}, nil)
	if missing.Load() != (err != nil) {
		t.Errorf("a place is missing: %t, yet the error is %v", missing.Load(), err)
	}
	return r.Outcomes
}

func yearly(requests uint64) *descriptor.Limit {
	return &descriptor.Limit{Requests: requests, Window: descriptor.Window{Unit: descriptor.Year}}
}

func TestSplitReservesAndGivesBack(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		takes   []backend.Take
		missing byte // a place that cannot be reached
		denied  bool
		used    map[string]int64 // afterwards; each limit is 10, except b, where 2 of 2 are used before
	}{
		"all pass":        {[]backend.Take{{Key: []byte("a"), Hits: 2}, {Key: []byte("c"), Hits: 3, Member: 1}}, 0, false, map[string]int64{"a": 2, "c": 3}},
		"one denies":      {[]backend.Take{{Key: []byte("a"), Hits: 2}, {Key: []byte("b"), Hits: 1, Member: 1}, {Key: []byte("c"), Hits: 3, Member: 2}}, 0, true, map[string]int64{"a": 0, "b": 2, "c": 0}},
		"a shadow":        {[]backend.Take{{Key: []byte("a"), Hits: 2}, {Key: []byte("b"), Hits: 1, Member: 1, Vote: backend.VoteNone}}, 0, false, map[string]int64{"a": 2, "b": 2}},
		"a shadow beside": {[]backend.Take{{Key: []byte("a"), Hits: 2}, {Key: []byte("b"), Hits: 1, Vote: backend.VoteNone}}, 0, false, map[string]int64{"a": 2, "b": 2}},
		"a shadow first":  {[]backend.Take{{Key: []byte("b"), Hits: 1, Vote: backend.VoteNone}, {Key: []byte("a"), Hits: 11}}, 0, true, map[string]int64{"a": 0, "b": 2}},
		"quota, one":      {[]backend.Take{{Key: []byte("a"), Hits: 2, Vote: backend.VoteAny}, {Key: []byte("b"), Hits: 1, Member: 1, Vote: backend.VoteAny}}, 0, false, map[string]int64{"a": 2, "b": 2}},
		"quota, all":      {[]backend.Take{{Key: []byte("a"), Hits: 11, Vote: backend.VoteAny}, {Key: []byte("b"), Hits: 1, Member: 1, Vote: backend.VoteAny}, {Key: []byte("c"), Hits: 1, Member: 2}}, 0, true, map[string]int64{"a": 0, "b": 2, "c": 0}},
		"a place is out":  {[]backend.Take{{Key: []byte("a"), Hits: 2}, {Key: []byte("c"), Hits: 3, Member: 1}}, 'c', true, map[string]int64{"a": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := places{'a': memory.New(memory.Options{}), 'b': memory.New(memory.Options{}), 'c': memory.New(memory.Options{})}
			p.take(t, now, &backend.Request{Takes: []backend.Take{{Key: []byte("b"), Limit: yearly(2), Hits: 2}}})
			if c.missing != 0 {
				delete(p, c.missing)
			}
			for i := range c.takes {
				c.takes[i].Limit = yearly(10)
				if c.takes[i].Key[0] == 'b' {
					c.takes[i].Limit = yearly(2)
				}
			}
			out := p.take(t, now, &backend.Request{Takes: c.takes, Together: true})
			if c.missing != 0 {
				for i := range out {
					if !out[i].Failed {
						t.Errorf("take %d has an answer: %+v", i, out[i])
					}
				}
			} else if backend.Denied(c.takes, out) != c.denied {
				t.Errorf("denied %t, want %t: %+v", !c.denied, c.denied, out)
			}
			for key, want := range c.used {
				peek := p.take(t, now, &backend.Request{Takes: []backend.Take{{Key: []byte(key), Limit: yearly(10)}}})
				if peek[0].Used != want {
					t.Errorf("%s: %d used, want %d", key, peek[0].Used, want)
				}
			}
		})
	}
}

// Whatever the order of the parts' calls, the narrow limit is never exceeded. At the end the wide limit has lost
// exactly the allowed hits.
func TestSplitUnderContention(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := places{'n': memory.New(memory.Options{}), 'w': memory.New(memory.Options{})}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				takes := []backend.Take{{Key: []byte("narrow"), Limit: yearly(100), Hits: 1}, {Key: []byte("wide"), Limit: yearly(100_000), Hits: 1, Member: 1}}
				if !backend.Denied(takes, p.take(t, now, &backend.Request{Takes: takes, Together: true})) {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	wide := p.take(t, now, &backend.Request{Takes: []backend.Take{{Key: []byte("wide"), Limit: yearly(100_000)}}})
	if admitted.Load() != 100 || wide[0].Used != 100 {
		t.Errorf("admitted %d of 100, and %d of the wide limit are used", admitted.Load(), wide[0].Used)
	}
}

// Hits that another request has only reserved do not start a penalty: they are given back because another place denies
// that request.
func TestSplitBeginsNoPenaltyForReservedHits(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stores := map[byte]*memory.Store{}
	for _, at := range []byte("fgs") {
		stores[at] = memory.New(memory.Options{})
	}
	request := func(hits int64) *backend.Request {
		takes := []backend.Take{{Key: []byte("s"), Limit: yearly(10), Hits: hits}}
		for _, key := range []string{"f", "g"} {
			takes = append(takes,
				backend.Take{Key: descriptor.AppendPenaltyKey(nil, []byte(key), false), Limit: descriptor.NewPenalty(24 * time.Hour), Guards: true},
				backend.Take{Key: []byte(key), Limit: yearly(20), Hits: hits})
		}
		return &backend.Request{Together: true, Takes: takes, Outcomes: make([]backend.Outcome, len(takes))}
	}
	place := func(t *backend.Take) byte {
		if t.Key[0] == '{' {
			return t.Key[1]
		}
		return t.Key[0]
	}
	between := func(byte) {}
	send := func(r *backend.Request) {
		t.Helper()
		if err := backend.Split(t.Context(), r, place, func(ctx context.Context, at byte, part *backend.Request) error {
			err := backend.Await(ctx, stores[at], now, part)
			between(at)
			return err
		}, nil); err != nil {
			t.Fatal(err)
		}
	}
	penalised := func() (any bool) {
		r := request(0)
		send(r)
		for i, o := range r.Outcomes {
			any = any || i%2 == 1 && !o.Allowed
		}
		return any
	}

	var once sync.Mutex
	between = func(at byte) { // another request comes while this one has reserved hits
		if at != 's' && once.TryLock() {
			send(request(15))
		}
	}
	send(request(15)) // more than the 10 of s
	if between = func(byte) {}; penalised() {
		t.Error("a penalty has begun, though no limit with a penalty was exceeded")
	}

	send(request(10))
	r := &backend.Request{Together: true, Takes: request(11).Takes[1:], Outcomes: make([]backend.Outcome, 4)}
	send(r)
	if !penalised() {
		t.Error("no penalty has begun, though both limits with a penalty denied")
	}
}

// A commit is carried out as it is, even if a place that was asked before has denied the group.
func TestSplitCommitsAfterADenial(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := places{'s': memory.New(memory.Options{}), 'z': memory.New(memory.Options{})}
	tokens := yearly(5_000)
	tokens.Reservations = &descriptor.Reservations{TTL: time.Minute, MaxTTL: time.Hour, MaxShare: descriptor.MaxShareWhole, MaxOutstanding: 10}
	id := backend.ReservationID{1}
	reserved := p.take(t, now, &backend.Request{Takes: []backend.Take{
		{Key: []byte("z"), Limit: tokens, Hits: 1_000, Reservation: &backend.Reservation{ID: id, Op: backend.OpReserve}},
	}})
	if reserved[0].Used != 1_000 {
		t.Fatalf("%+v", reserved)
	}
	denied := p.take(t, now, &backend.Request{Together: true, Takes: []backend.Take{
		{Key: []byte("s"), Limit: yearly(10), Hits: 11},
		{Key: []byte("z penalty"), Limit: descriptor.NewPenalty(24 * time.Hour), Guards: true, Member: 1},
		{Key: []byte("z guarded"), Limit: yearly(10), Hits: 1, Member: 1},
		{Key: []byte("z"), Limit: tokens, Hits: 900, Member: 2, Reservation: &backend.Reservation{ID: id, Op: backend.OpCommit, Final: true}},
	}})
	if denied[0].Allowed || denied[3].Used != 900 {
		t.Errorf("%+v; want 900 used of what was reserved", denied)
	}
	if used := p.take(t, now, &backend.Request{Takes: []backend.Take{{Key: []byte("z guarded"), Limit: yearly(10)}}})[0].Used; used != 0 {
		t.Errorf("the denied request used %d of another limit", used)
	}
}

// Split reports each take that gave reserved hits back, so that a cache can forget the denial of its counter.
func TestSplitSaysWhatItGaveBack(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	stores := places{'a': memory.New(memory.Options{}), 'b': memory.New(memory.Options{})}
	var given []string
	take := func(hits int64) {
		r := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
			{Key: []byte("a"), Limit: yearly(100), Hits: hits}, {Key: []byte("b"), Limit: yearly(10), Hits: hits},
		}}
		if err := backend.Split(t.Context(), r, func(t *backend.Take) byte { return t.Key[0] },
			func(ctx context.Context, at byte, part *backend.Request) error {
				return backend.Await(ctx, stores[at], now, part)
			},
			func(t *backend.Take, o *backend.Outcome) {
				given = append(given, fmt.Sprintf("%d of %s, which had %d", -t.Hits, t.Key, o.Before))
			}); err != nil {
			t.Fatal(err)
		}
	}
	take(10)
	if len(given) > 0 {
		t.Errorf("nothing was given back, and yet: %q", given)
	}
	take(20)
	if len(given) != 1 || given[0] != "20 of a, which had 30" {
		t.Errorf("given back: %q", given)
	}
}
