package libraries

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// wait returns when one more event may happen.
type wait = func() error

// waiters are the libraries that can make a goroutine wait for its turn. Here none of them passes two events at the
// same time. decisions counts how often a limiter was asked.
var waiters = []struct {
	name string
	open func(b *testing.B, aSecond int, decisions *atomic.Int64) wait
}{
	{"ratelimitd-Keyed-token-bucket", waitKeyed(ratelimit.TokenBucket, 1)},
	{"ratelimitd-Keyed-leaky-bucket", waitKeyed(ratelimit.LeakyBucket, 1000)}, // its burst is how many may wait
	{"x-time-rate", func(_ *testing.B, aSecond int, decisions *atomic.Int64) wait {
		l := rate.NewLimiter(rate.Limit(aSecond), 1)
		return func() error {
			decisions.Add(1)
			return l.Wait(background)
		}
	}},
}

func waitKeyed(algorithm ratelimit.Algorithm, burst uint64) func(b *testing.B, aSecond int, decisions *atomic.Int64) wait {
	return func(b *testing.B, aSecond int, decisions *atomic.Int64) wait {
		k, err := ratelimit.OpenKeyed(background, ratelimit.Limit{
			Requests: uint64(aSecond), Window: time.Second, Algorithm: algorithm, Burst: burst,
		}, ratelimit.Options{Observer: counted{decisions}})
		must(b, err)
		b.Cleanup(func() { must(b, k.Close()) })
		return func() error { return k.Wait(background, "vendor") }
	}
}

// counted counts decisions.
type counted struct{ decisions *atomic.Int64 }

// Decided implements limits.Observer.
func (c counted) Decided(context.Context, *limits.Request, *limits.Decision, error, time.Duration) {
	c.decisions.Add(1)
}

// Workers call an API that allows 100 requests a second, for five seconds. We measure how much of that they use, and
// the longest wait.
func BenchmarkWaitOfWorkers(b *testing.B) {
	for _, workers := range []int{1, 2, 5, 20} {
		for _, l := range waiters {
			b.Run(fmt.Sprintf("workers=%d/%s", workers, l.name), func(b *testing.B) {
				const aSecond, seconds = 100, 5
				var decisions, passed, longest atomic.Int64
				for b.Loop() {
					allowed := l.open(b, aSecond, &decisions)
					end := time.Now().Add(seconds * time.Second)
					spread(workers, func(int) {
						for began := time.Now(); began.Before(end); {
							must(b, allowed())
							now := time.Now()
							if now.Before(end) {
								passed.Add(1)
							}
							for took := int64(now.Sub(began)); ; {
								old := longest.Load()
								if took <= old || longest.CompareAndSwap(old, took) {
									break
								}
							}
							began = now
						}
					})
				}
				b.ReportMetric(100*float64(passed.Load())/float64(b.N*aSecond*seconds), "%rate")
				b.ReportMetric(float64(longest.Load())/1e6, "longest-ms")
				b.ReportMetric(float64(decisions.Load())/float64(passed.Load()), "decisions/passed")
			})
		}
	}
}

// 50 goroutines join the line one after another, while 10 a second may pass.
func BenchmarkWaitInLine(b *testing.B) {
	const callers, aSecond = 50, 10
	for _, l := range waiters {
		b.Run(l.name, func(b *testing.B) {
			var decisions atomic.Int64
			var took time.Duration
			outOfOrder := 0
			for b.Loop() {
				allowed := l.open(b, aSecond, &decisions)
				var mu sync.Mutex
				var order []int
				began := time.Now()
				var all sync.WaitGroup
				for i := range callers {
					all.Go(func() {
						must(b, allowed())
						mu.Lock()
						order = append(order, i)
						mu.Unlock()
					})
					time.Sleep(time.Millisecond) //nolint:forbidigo // the next one comes later
				}
				all.Wait()
				took += time.Since(began)
				for i, caller := range order {
					if slices.Contains(order[:i], caller+1) {
						outOfOrder++
					}
				}
			}
			b.ReportMetric(took.Seconds()/float64(b.N), "s/all")
			b.ReportMetric(float64(outOfOrder)/float64(b.N), "out-of-order")
			b.ReportMetric(float64(decisions.Load())/float64(b.N), "decisions")
		})
	}
}
