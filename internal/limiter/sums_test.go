package limiter_test

import (
	"math"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// statistics returns the counters of a rule by the names of envoyproxy/ratelimit.
func (f *fixture) statistics(path string) map[string]uint64 {
	all := make(map[string]uint64)
	f.Statistics(func(of, stat string, n uint64) {
		if of == "ratelimit.service.rate_limit."+path {
			all[stat] += n
		}
	})
	return all
}

// envoyproxy/ratelimit's hits have 32 bits, and a denied request counts with all of them. With more bits, one denied
// request counts no more than the limit could ever deny.
func TestDeniedHitsInMetrics(t *testing.T) {
	for _, c := range []struct{ limit, hits, want uint64 }{
		{10, 20, 20},
		{10, math.MaxUint32, math.MaxUint32},
		{10, 1 << 53, math.MaxUint32},
		{1 << 40, 1<<40 + 1, 1<<40 + 1},
		{1 << 40, 1 << 53, 1<<40 + 1},
		{descriptor.MaxRequests, 1 << 53, 1 << 53},
	} {
		f := newFixture(t, limiter.Settings{NearLimitRatio: 1}, perMinute("k", "", c.limit))
		f.ask(int64(c.hits), "k=a")
		got := f.statistics("d.k")
		if got["total_hits"] != c.want || got["within_limit"] != 0 || got["over_limit"] != c.want-c.limit {
			t.Errorf("%d hits under a limit of %d: %v", c.hits, c.limit, got)
		}
	}
}

// A sum of hits stays at its maximum. One that starts again at 0 would look like a restart.
func TestSumsOfHitsDoNotWrap(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", descriptor.MaxRequests), descriptor.NodeSpec{Key: "free", Rule: &descriptor.Rule{Unlimited: true}})
	_, totals := f.RuleTotals()
	before := uint64(0)
	for range 5000 {
		f.ask(1<<53, "free=a")
		f.ask(1<<53, "k=a")
		after := totals(1).Hits
		if after < before || totals(0).Hits < f.statistics("d.k")["over_limit"] {
			t.Fatalf("hits went from %d to %d: %v", before, after, f.statistics("d.k"))
		}
		before = after
	}
}
