package backend

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func drawBucket(t *rapid.T, what string) *descriptor.Limit {
	l := &descriptor.Limit{
		Algorithm: rapid.SampledFrom([]descriptor.Algorithm{descriptor.TokenBucket, descriptor.LeakyBucket}).Draw(t, what),
		Requests:  rapid.OneOf(rapid.Uint64Range(1, 100), rapid.Uint64Range(1, 1_000_000)).Draw(t, "requests"),
		Burst:     rapid.Uint64Range(1, 200).Draw(t, "burst"),
		NoDelay:   descriptor.NoDelayAll,
		Window:    descriptor.Window{Unit: descriptor.Minute},
	}
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	return l
}

// Hits that were charged stay charged, and no fraction of them gets lost or is added, however often the limit's number
// changes. The model keeps the hits in use as a fraction; they drain at the rate of the limit that was last asked for.
func TestBucketKeepsHitsWhenTheLimitChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s State
		now, level, rate := int64(1)<<50, new(big.Rat), uint64(1)
		for range rapid.IntRange(1, 30).Draw(t, "takes") {
			l := drawBucket(t, "algorithm")
			capacity := new(big.Rat).SetInt64(int64(l.Capacity()))
			pause := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 2_000_000)).Draw(t, "pause")
			now += pause
			drained := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(pause), new(big.Int).SetUint64(rate)), big.NewInt(l.Arithmetic.Length))
			if level.Sub(level, drained); level.Sign() < 0 {
				level.SetInt64(0)
			}
			rate = l.Requests
			_, kept, idle, horizon := busyUntil(l, &s, now, commitAllowed)
			if level.Cmp(new(big.Rat).Add(capacity, capacity)) >= 0 {
				if kept != horizon && kept.us-horizon.us > slack {
					t.Fatalf("%s with %s in use is ahead by %d us more than a bucket", l.Words(), level.FloatString(9), kept.us-horizon.us)
				}
				return // it was just used up, or is within the slack, which the tests of clocks are about
			}
			if kept.us-horizon.us == max(slack, horizon.us-now) || level.Cmp(capacity) > 0 && kept == horizon {
				return // two buckets ahead, but by less than a hit
			}
			hits := rapid.Int64Range(-20, 20).Draw(t, "hits")
			after := new(big.Rat).Add(level, new(big.Rat).SetInt64(hits))
			allowed := hits < 0 || hits == 0 || after.Cmp(capacity) <= 0
			if o := (bucket{}).apply(l, &s, now, hits, commitAllowed); o.Allowed != allowed {
				t.Fatalf("%d hits of %s with %s in use: %+v", hits, l.Words(), level.FloatString(9), o)
			}
			if allowed {
				if level = after; level.Sign() < 0 {
					level.SetInt64(0)
				}
			}
			_, kept, idle, _ = busyUntil(l, &s, now, commitPeek)
			length := big.NewInt(l.Arithmetic.Length)
			left := new(big.Int).Mul(big.NewInt(kept.us-idle.us), new(big.Int).SetUint64(l.Requests))
			if got := new(big.Rat).SetFrac(left.Add(left, big.NewInt(kept.num)), length); got.Cmp(level) != 0 {
				t.Fatalf("%d hits of %s: %s are in use, want %s", hits, l.Words(), got.RatString(), level.RatString())
			}
		}
	})
}

// A commit returns all hits that its reservation charged, and no others, even if the limit changed in between.
func TestBucketReturnsWhatItCharged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		was, is := drawBucket(t, "before"), drawBucket(t, "after")
		others := rapid.Int64Range(0, int64(was.Capacity())).Draw(t, "others")
		hits := rapid.Int64Range(0, int64(was.Capacity())-others).Draw(t, "hits")
		if uint64(others+hits) > is.Capacity() {
			return // TestBucketKeepsHitsWhenTheLimitChanges
		}
		var s State
		now := int64(1) << 50
		for _, n := range []int64{others, hits} {
			(bucket{}).apply(was, &s, now, n, commitAllowed)
		}
		(bucket{}).adjust(is, &s, now, now, -hits)
		if o := usage(is, &s, now); o.Used != others {
			t.Fatalf("%d of others, %d reserved under %s and returned under %s: %d in use", others, hits, was.Words(), is.Words(), o.Used)
		}
	})
}
