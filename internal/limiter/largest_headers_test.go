package limiter_test

import (
	"math"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// envoyproxy/ratelimit sends no headers while nothing of the largest limit is used, which only a peek shows.
func TestHeadersOfTheLargestLimit(t *testing.T) {
	f := newFixture(t, limiter.Settings{Headers: descriptor.HeadersReference}, perMinute("k", "", math.MaxUint32))
	for _, c := range []struct {
		hits    uint64
		headers int
	}{{0, 0}, {1, 3}, {0, 3}} {
		d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("k=a"), Hits: c.hits, HasHits: true}}})
		if len(d.Headers) != c.headers {
			t.Errorf("%d hits: headers %v", c.hits, d.Headers)
		}
	}
}
