package backendtest

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// admission is a number of hits that passed at a time.
type admission struct{ at, hits int64 }

// runBounds floods one counter at random times that go forward. From the hits that passed, it checks that the algorithm
// kept its promise.
func runBounds(t *testing.T, open func(t testing.TB) backend.Store) {
	s := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		l, many := drawSmall(rt, units), rapid.Bool().Draw(rt, "large numbers")
		if many {
			l = drawLarge(rt)
		}
		k := key(newCase(), "k", l)
		now := epoch.UnixMicro() + rapid.Int64Range(0, 30*24*3600*1_000_000).Draw(rt, "begin")
		step := l.Window.Length().Microseconds() / max(1, 2*min(int64(l.Requests), 10))
		var passed []admission
		for range rapid.IntRange(10, 60).Draw(rt, "takes") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, step), rapid.Int64Range(0, 4*step)).Draw(rt, "pause")
			hits := rapid.SampledFrom([]int64{1, 1, 1, 2, 3}).Draw(rt, "hits")
			if capacity := int64(l.Capacity()); many {
				hits = rapid.OneOf(rapid.SampledFrom([]int64{1, capacity / 2, capacity/3 + 1, capacity - 1, capacity}),
					rapid.Int64Range(1, capacity)).Draw(rt, "many hits")
			}
			if o := one(rt, s, time.UnixMicro(now), backend.Take{Key: k, Limit: l, Hits: hits}); o.Allowed {
				passed = append(passed, admission{now, hits})
			}
		}
		checkBound(rt, l, passed)
	})
}

func checkBound(t *rapid.T, l *descriptor.Limit, passed []admission) {
	limit, length := int64(l.Requests), l.Window.Length().Microseconds()
	switch l.Algorithm {
	case descriptor.FixedWindow, descriptor.SharedWindow:
		// At most the limit in each window, wherever the windows start.
		end, sum := int64(-1), int64(0)
		for _, p := range passed {
			if p.at >= end {
				sum = 0
				if _, end = l.Window.Bounds(p.at); l.FirstHit {
					end = p.at + length
				}
			}
			if sum += p.hits; sum > limit {
				t.Fatalf("%s: %d in the window that ends at %d", limitText(l), sum, end)
			}
		}
	case descriptor.SlidingLog, descriptor.Concurrency:
		// At most the limit in every half-open window.
		for i := range passed {
			sum := int64(0)
			for j := i; j >= 0 && passed[j].at > passed[i].at-length; j-- {
				sum += passed[j].hits
			}
			if sum > limit {
				t.Fatalf("%s: %d in the window up to %d", limitText(l), sum, passed[i].at)
			}
		}
	case descriptor.SlidingWindow:
		// At each admission, the estimate from all hits that passed so far is at most the limit.
		n := int64(max(l.Precision, 1))
		sub := length / n
		for i, p := range passed {
			index, at := p.at/sub, p.at-p.at%l.Arithmetic.Quantum
			full, oldest := int64(0), int64(0)
			for _, q := range passed[:i+1] {
				switch age := index - q.at/sub; {
				case age < n:
					full += q.hits
				case age == n:
					oldest += q.hits
				}
			}
			left := new(big.Int).Mul(big.NewInt(oldest), big.NewInt(sub-at%sub))
			if full += left.Div(left, big.NewInt(sub)).Int64(); full > limit {
				t.Fatalf("%s: the estimate is %d at %d", limitText(l), full, p.at)
			}
		}
	default:
		// At most the capacity plus the refill, in every interval.
		for i := range passed {
			sum := int64(0)
			for j := i; j < len(passed); j++ {
				sum += passed[j].hits
				over := big.NewInt(sum - int64(l.Capacity()))
				back := big.NewInt(0) // hits * length
				switch elapsed := passed[j].at - passed[i].at; {
				case l.Interval && l.FirstHit:
					back.Mul(big.NewInt((elapsed/length+1)*length), big.NewInt(limit))
				case l.Interval:
					back.Mul(big.NewInt((passed[j].at/length-passed[i].at/length)*length), big.NewInt(limit))
				default:
					back.Mul(big.NewInt(elapsed), big.NewInt(limit))
				}
				if over.Mul(over, big.NewInt(length)).Cmp(back) > 0 {
					t.Fatalf("%s: %d from %d to %d", limitText(l), sum, passed[i].at, passed[j].at)
				}
			}
		}
	}
}
