package memory_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
)

// Limits that count time from hits do not notice that the clock is set. Those whose windows lie on the clock follow it.
func TestClockIsSet(t *testing.T) {
	for name, l := range backendtest.EveryAlgorithm(10) {
		l := *l
		l.Window.Unit = descriptor.Minute
		l.Window.Location = nil
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		onClock := l.WindowEnds() && !l.FirstHit || l.Interval
		for _, seconds := range []int64{-1, -3600, 3600, 86400} {
			s := memory.New(memory.Options{})
			take := func(at time.Time, hits int64) backend.Outcome {
				r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: &l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
				if err := backend.Await(t.Context(), s, at, &r); err != nil {
					t.Fatal(err)
				}
				return r.Outcomes[0]
			}
			now := time.Now()
			now = now.Add(90*time.Second - now.Sub(now.Truncate(time.Minute))) // the middle of a minute
			if o := take(now, int64(l.Capacity())); !o.Allowed {
				t.Fatalf("%s: %+v", name, o)
			}
			before := take(now, 1)
			if after := take(backendtest.Stepped(now, seconds), 1); !onClock && after != before {
				t.Errorf("%s, the clock is set by %d s: %+v, before: %+v", name, seconds, after, before)
			} else if onClock && after.Allowed != (seconds > 0) {
				t.Errorf("%s, the clock is set by %d s: %+v", name, seconds, after)
			}
		}
	}
}

// A store gives the same answers as the model, which is asked at the time by which the limit counts.
func TestSteppedModel(t *testing.T) {
	start := time.Now()
	rapid.Check(t, func(rt *rapid.T) {
		l, s, m, now := backendtest.DrawLimit(rt), memory.New(memory.Options{}), backendtest.NewModel(), start
		length, seconds := l.Window.Length(), int64(0)
		for range rapid.IntRange(1, 20).Draw(rt, "takes") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(length)).Draw(rt, "pause")))
			if rapid.IntRange(0, 4).Draw(rt, "step") == 0 {
				seconds = rapid.Int64Range(-100_000, 100_000).Draw(rt, "seconds")
			}
			seen := backendtest.Stepped(now, seconds)
			onClock := !l.FirstHit && (l.WindowEnds() || l.Interval)
			if !onClock && rapid.Bool().Draw(rt, "sweep") { // a window may be opened twice when its counter is gone
				s.Sweep(seen)
			}
			at := time.UnixMicro(memory.Elapsed(s, now))
			if onClock {
				at = seen
			}
			hits := rapid.Int64Range(-2, 2*int64(min(l.Capacity(), 50))+2).Draw(rt, "hits")
			got := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
			want := backend.Request{Takes: got.Takes, Outcomes: make([]backend.Outcome, 1)}
			if err := backend.Await(context.Background(), s, seen, &got); err != nil {
				rt.Fatal(err)
			}
			if err := backend.Await(context.Background(), m, at, &want); err != nil {
				rt.Fatal(err)
			}
			if got.Outcomes[0] != want.Outcomes[0] {
				rt.Fatalf("%+v, %d hits at %v, clock set by %d s: %+v, want %+v", l, hits, now.Sub(start), seconds, got.Outcomes[0], want.Outcomes[0])
			}
		}
	})
}

// Counters are dropped when their time has passed, and not earlier, regardless of the clock.
func TestSweepWhileClockIsSet(t *testing.T) {
	for name, l := range backendtest.EveryAlgorithm(10) {
		length := l.Window.Length()
		s, now := memory.New(memory.Options{}), time.Now()
		r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
		if err := backend.Await(t.Context(), s, backendtest.Stepped(now, 86_400), &r); err != nil {
			t.Fatal(err)
		}
		ends := r.Outcomes[0].ResetAfter // sliding windows and intervals may be kept longer
		s.Sweep(backendtest.Stepped(now.Add(ends-time.Millisecond), 10*365*86_400))
		if s.Len() != 1 {
			t.Errorf("%s: dropped early", name)
		}
		s.Sweep(now.Add(2*length + time.Millisecond))
		if s.Len() != 0 {
			t.Errorf("%s: kept after a step back", name)
		}
	}
}
