package backendtest

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

var penaltyTimes = []time.Duration{time.Second, 10 * time.Second, 10 * time.Minute, 24 * time.Hour,
	descriptor.MaxPenalty}

// guard returns the take of a penalty, which stands before the take that it guards.
func guard(take *backend.Take, lasts time.Duration) backend.Take {
	return backend.Take{
		Key:    descriptor.AppendPenaltyKey(nil, take.Key, false),
		Limit:  descriptor.NewPenalty(lasts),
		Member: take.Member, Vote: take.Vote, Guards: true,
	}
}

func drawGuard(t *rapid.T, take *backend.Take) backend.Take {
	return guard(take, rapid.SampledFrom(penaltyTimes).Draw(t, "penalty"))
}

// readPenalties returns a request that reads the penalties of counters.
func readPenalties(keys []backend.Take) *backend.Request {
	r := &backend.Request{Outcomes: make([]backend.Outcome, len(keys))}
	for i := range keys {
		r.Takes = append(r.Takes, guard(&keys[i], descriptor.MaxPenalty))
		r.Takes[i].Guards = false
	}
	return r
}

// offender is the plain model of one counter with a penalty: times in microseconds.
type offender struct {
	start, count int64 // start and count of the fixed window
	until        int64 // end of the penalty
}

// runPenalties checks fixed windows with penalties against independent arithmetic: 300 requests for each of the checks.
func runPenalties(t *testing.T, open func(t testing.TB) backend.Store) {
	s := open(t)
	t.Run("plain model", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) { checkPenalties(rt, s) })
	})
	t.Run("one reset ends it", func(t *testing.T) { testPenaltyReset(t, s) })
	t.Run("a take that a penalty stops clamps its counter", func(t *testing.T) { testPenalisedClamps(t, s) })
}

func checkPenalties(rt *rapid.T, s backend.Store) {
	const window = int64(10_000_000)
	prefix := newCase()
	l := Limit("3/10s")
	lasts := rapid.SampledFrom([]time.Duration{time.Second, 4 * time.Second, 10 * time.Second, 25 * time.Second}).Draw(rt,
		"penalty")
	var all [3]offender
	now := epoch.UnixMicro()
	for step := range 300 {
		now += rapid.SampledFrom([]int64{0, 0, 1, 200_000, 999_999, 1_000_000, 5_000_000, 9_999_999}).Draw(rt, "pause")
		r := &backend.Request{Together: rapid.Bool().Draw(rt, "together")}
		var want []bool
		for i := range all {
			if rapid.IntRange(0, 2).Draw(rt, "absent") > 0 {
				continue
			}
			take := backend.Take{
				Key: key(prefix, string(rune('a'+i)), l), Limit: l, Member: i,
				Hits: rapid.SampledFrom([]int64{1, 1, 1, 2, 4, 0}).Draw(rt, "hits"), CountDenied: !r.Together,
			}
			if rapid.IntRange(0, 4).Draw(rt, "shadow") == 0 {
				take.Vote = backend.VoteNone
			}
			r.Takes = append(r.Takes, guard(&take, lasts), take)
		}
		r.Outcomes = make([]backend.Outcome, len(r.Takes))
		over := false // the request
		for k := 1; k < len(r.Takes); k += 2 {
			o := &all[r.Takes[k].Member]
			if o.start != now/window {
				o.start, o.count = now/window, 0
			}
			passes := o.count+r.Takes[k].Hits <= 3
			want = append(want, now >= o.until, passes)
			over = over || r.Takes[k].Vote == backend.VoteAll && (now < o.until || !passes)
		}
		for k := 1; k < len(r.Takes); k += 2 {
			o, hits := &all[r.Takes[k].Member], r.Takes[k].Hits
			penalised, passes := !want[k-1], want[k]
			if !r.Together {
				over = penalised || !passes
			}
			switch {
			case penalised:
			case !passes && r.Takes[k].CountDenied, passes && (!over || r.Takes[k].Vote == backend.VoteNone && !r.Together):
				o.count += hits
			}
			if !penalised && !passes && hits > 0 {
				o.until = now + lasts.Microseconds()
				want[k-1] = false
			}
		}
		if err := backend.Await(rt.Context(), s, time.UnixMicro(now), r); err != nil {
			rt.Fatal(err)
		}
		for k, w := range want {
			o, of := &r.Outcomes[k], &all[r.Takes[k].Member]
			if o.Allowed != w {
				rt.Fatalf("step %d, take %d (%d hits, together %v): %s, want allowed %v", step, k, r.Takes[k].Hits, r.Together,
					outcomeText(o), w)
			}
			if k%2 == 0 && !w && o.RetryAfter != time.Duration(of.until-now)*time.Microsecond {
				rt.Fatalf("step %d, take %d: %s, want a penalty for %d more microseconds", step, k, outcomeText(o), of.until-now)
			}
			if k%2 == 1 && o.Used != of.count {
				rt.Fatalf("step %d, take %d (%d hits, together %v): %s, want %d in use", step, k, r.Takes[k].Hits, r.Together,
					outcomeText(o), of.count)
			}
		}
	}
}

// A state that lies further in the future than a limit allows is saved nearer, even if a penalty stops the take. Here
// the take before it in the group has moved the state there, under a larger limit.
func testPenalisedClamps(t *testing.T, s backend.Store) {
	large, small := Limit("1/1s,leaky,burst=9"), Limit("1/1s,leaky,burst=1")
	name := key(newCase(), "k", large)
	first, second := backend.Take{Key: name, Limit: large, Hits: 10},
		backend.Take{Key: name, Limit: small, Hits: 1, Vote: backend.VoteNone}
	offence := second
	offence.Hits = 100
	for _, takes := range [][]backend.Take{{guard(&offence, time.Hour), offence},
		{first, guard(&second, time.Hour), second}} {
		r := &backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes))}
		if err := backend.Await(t.Context(), s, epoch, r); err != nil {
			t.Fatal(err)
		}
	}
	r := &backend.Request{Takes: []backend.Take{{Key: name, Limit: large}}, Outcomes: make([]backend.Outcome, 1)}
	if err := backend.Await(t.Context(), s, epoch, r); err != nil {
		t.Fatal(err)
	}
	if got, want := r.Outcomes[0].ResetAfter, 2*time.Second; got != want {
		t.Errorf("the counter is empty in %s, want %s: all that the small limit holds", got, want)
	}
}

func testPenaltyReset(t *testing.T, s backend.Store) {
	l := Limit("1/10s")
	take := backend.Take{Key: key(newCase(), "k", l), Limit: l, Hits: 1}
	request := func(after time.Duration) (penalised bool) {
		t.Helper()
		r := &backend.Request{Takes: []backend.Take{guard(&take, time.Hour), take}, Outcomes: make([]backend.Outcome, 2)}
		if err := backend.Await(t.Context(), s, epoch.Add(after), r); err != nil {
			t.Fatal(err)
		}
		return !r.Outcomes[0].Allowed
	}
	for i, want := range []bool{false, true} {
		if got := request(0); got != want {
			t.Fatalf("request %d: a penalty is active: %v", i, got)
		}
	}
	if !request(time.Minute) {
		t.Fatal("no penalty is active after a minute")
	}
	g := guard(&take, time.Hour)
	if err := s.Reset(t.Context(), []backend.Counter{{Key: g.Key, Limit: g.Limit}}); err != nil {
		t.Fatal(err)
	}
	if request(time.Minute) {
		t.Fatal("a penalty is active after the reset")
	}
}
