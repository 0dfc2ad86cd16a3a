package backendtest

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// runRefunds sends takes and refunds to one counter at random times that go forward. A refund of more hits than are
// used fills a bucket, and changes nothing elsewhere. In every span of time, the hits that passed minus the hits that
// were given back are within the algorithm's bound for such a span.
func runRefunds(t *testing.T, open func(t testing.TB) backend.Store) {
	s := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		l := drawSmall(rt, units)
		k := key(newCase(), "k", l)
		now := epoch.UnixMicro() + rapid.Int64Range(0, 30*24*3600*1_000_000).Draw(rt, "begin")
		step := l.Window.Length().Microseconds() / max(1, 2*int64(l.Requests))
		isBucket := l.Algorithm == descriptor.TokenBucket || l.Algorithm == descriptor.LeakyBucket
		var net []admission
		end := now // end of the current window, where windows start with a hit
		for range rapid.IntRange(10, 60).Draw(rt, "takes") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, step), rapid.Int64Range(0, 4*step)).Draw(rt, "pause")
			hits := rapid.SampledFrom([]int64{1, 1, 2, 3, -1, -2, -5}).Draw(rt, "hits")
			before := one(rt, s, time.UnixMicro(now), backend.Take{Key: k, Limit: l})
			o := one(rt, s, time.UnixMicro(now), backend.Take{Key: k, Limit: l, Hits: hits})
			switch {
			case hits > 0 && !o.Allowed:
				continue
			case hits < 0 && !o.Allowed:
				rt.Fatalf("%s: a refund was denied", limitText(l))
			case hits < 0 && before.Used < -hits && isBucket:
				if o.Used != 0 {
					rt.Fatalf("%s: %d hits were given back of %d, which left %d", limitText(l), -hits, before.Used, o.Used)
				}
				hits = -before.Used
			case hits < 0 && before.Used < -hits:
				if after := one(rt, s, time.UnixMicro(now), backend.Take{Key: k, Limit: l}); after != before ||
					o.Used != before.Used {
					rt.Fatalf("%s: %d of %d hits were given back: %s", limitText(l), before.Used-after.Used, before.Used,
						outcomeText(&after))
				}
				continue
			case hits < 0 && l.Algorithm != descriptor.SlidingWindow && o.Used != before.Used+hits,
				hits < 0 && o.Used < 0:
				rt.Fatalf("%s: %d hits were given back of %d, which left %d", limitText(l), -hits, before.Used, o.Used)
			}
			if l.FirstHit && now >= end {
				end, net = now+l.Window.Length().Microseconds(), nil
			}
			if l.FirstHit && o.Used == 0 { // the next hit starts a window
				end, net = now, nil
				continue
			}
			net = append(net, admission{now, hits})
			checkNet(rt, l, net)
		}
	})
}

// checkNet checks each span that ends with the last of these admissions.
func checkNet(t *rapid.T, l *descriptor.Limit, net []admission) {
	last, sum := net[len(net)-1].at, int64(0)
	for i := len(net) - 1; i >= 0; i-- {
		sum += net[i].hits
		if i > 0 && net[i-1].at == net[i].at {
			continue // the span starts with all hits of one time
		}
		if most := admits(l, net[i].at, last); sum > most {
			t.Fatalf("%s: %d passed and were not given back within %s; at most %d may", limitText(l), sum,
				time.Duration(last-net[i].at)*time.Microsecond, most)
		}
	}
}

// admits returns an upper bound of the hits that a limit allows from one time to another, both included.
func admits(l *descriptor.Limit, from, to int64) int64 {
	length, limit := l.Window.Length().Microseconds(), int64(l.Requests)
	windows := to/length - from/length // number of windows that start in the span
	switch l.Algorithm {
	case descriptor.FixedWindow, descriptor.SharedWindow:
		if l.FirstHit {
			return limit // runRefunds looks at one window only
		}
		start, end := l.Window.Bounds(from)
		windows = (to - start) / (end - start)
		return limit * (windows + 1)
	case descriptor.SlidingLog, descriptor.Concurrency:
		return limit * ((to-from)/length + 1)
	case descriptor.SlidingWindow:
		sub := length / int64(max(l.Precision, 1))
		return limit * (to/sub - from/sub + 1)
	default:
		if l.Interval && l.FirstHit {
			windows = (to-from)/length + 1
		}
		if l.Interval {
			return int64(l.Capacity()) + limit*windows
		}
		return int64(l.Capacity()) + limit*(to-from)/length + 1
	}
}
