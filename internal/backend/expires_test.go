package backend_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// TestExpires checks that an expired state gives the same decisions as no state. That is why a store may drop it.
func TestExpires(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l, now := backendtest.DrawLimit(rt), int64(1_800_000_000_000_000)
		settle := func(s *backend.State, at, hits int64, countDenied bool) backend.Outcome {
			var out [1]backend.Outcome
			takes := []backend.Take{{Limit: l, Hits: hits, CountDenied: countDenied}}
			backend.Settle(takes, []*backend.State{s}, out[:], backend.At(at))
			return out[0]
		}
		hits := func(name string) int64 { return rapid.Int64Range(-2, 2*int64(min(l.Capacity(), 50))+2).Draw(rt, name) }
		var s backend.State
		for range rapid.IntRange(1, 10).Draw(rt, "takes") {
			settle(&s, now, hits("hits"), rapid.Bool().Draw(rt, "count_denied"))
			now += rapid.Int64Range(0, l.Window.Length().Microseconds()).Draw(rt, "pause")
		}
		if s.Unused() {
			return
		}
		at := max(now, backend.Expires(l, &s)) + rapid.SampledFrom([]int64{0, 1, 999_999}).Draw(rt, "after")
		h := hits("last hits")
		var none backend.State
		kept := s
		if got, want := settle(&kept, at, h, false), settle(&none, at, h, false); got != want {
			t.Fatalf("%+v\nstate %+v expires at %d; at %d it says %+v, none says %+v", l, s, backend.Expires(l, &s), at, got, want)
		}
	})
}

// TestExpiresAfter checks that the outcome of a take gives the same time as the state that the take has left, even when
// the clock goes back.
func TestExpiresAfter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l, now := backendtest.DrawLimit(rt), int64(1_800_000_000_000_000)
		length := l.Window.Length().Microseconds()
		var s backend.State
		for range rapid.IntRange(1, 10).Draw(rt, "takes") {
			var out [1]backend.Outcome
			take := backend.Take{
				Limit:       l,
				Hits:        rapid.Int64Range(-2, 2*int64(min(l.Capacity(), 50))+2).Draw(rt, "hits"),
				CountDenied: rapid.Bool().Draw(rt, "count_denied"),
			}
			backend.Settle([]backend.Take{take}, []*backend.State{&s}, out[:], backend.At(now))
			if got, want := backend.ExpiresAfter(l, &s, &out[0], now), backend.Expires(l, &s); got != want {
				t.Fatalf("%+v\n%+v at %d left %+v: expires at %d by the outcome %+v, at %d by the state", l, take, now, s, got, out[0], want)
			}
			now += rapid.Int64Range(-length, 2*length).Draw(rt, "pause")
		}
	})
}
