package limiter_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
)

// BenchmarkObserving reports the CPU time that metrics, hot keys, and the index of usage add to a decision. An observed
// limiter and a plain one take turns, and the result is the median of the rounds. It is reliable on a busy machine,
// where the times of whole runs are not. No key is hot, which is the worst case for hot keys; with one key none is
// pushed out.
func BenchmarkObserving(b *testing.B) {
	for _, keys := range []int{1, 100_000} {
		for _, limit := range []uint64{4_000_000_000, 0} {
			for _, c := range []struct {
				name                string
				metrics, hot, usage bool
			}{{"metrics", true, false, false}, {"hot keys", false, true, false}, {"both", true, true, false}, {"usage", false, false, true}} {
				denied := limit == 0
				b.Run(fmt.Sprintf("%s/keys=%d/denied=%t", c.name, keys, denied), func(b *testing.B) {
					rule := perMinute("user", "", limit)
					rule.Rule.Usage = c.usage
					tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{rule}}}, descriptor.Options{})
					if err != nil {
						b.Fatal(err)
					}
					reqs := make([]*limiter.Request, max(keys, 1000))
					for i := range reqs {
						reqs[i] = &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries(fmt.Sprintf("user=customer-%08d", i*7919%keys))}}}
					}
					observed := limiter.Options{Store: memory.New(memory.Options{}), NoMetrics: !c.metrics}
					if c.hot {
						observed.HotKeys = hotkeys.New(noon, hotkeys.Options{})
					}
					if c.usage {
						observed.Usage = usage.New(usage.Options{Store: new(usage.Memory)})
						var wg sync.WaitGroup
						ctx, stop := context.WithCancel(context.Background())
						wg.Go(func() { _ = observed.Usage.Run(ctx) }) // always nil
						b.Cleanup(func() { stop(); wg.Wait() })
					}
					both := [2]*limiter.Limiter{limiter.New(limiter.Options{Store: observed.Store, NoMetrics: true}), limiter.New(observed)}
					for _, l := range both {
						l.Swap(tree, limiter.Settings{})
					}
					takeTurns(b, both, reqs)
				})
			}
		}
	}
}

func takeTurns(b *testing.B, both [2]*limiter.Limiter, reqs []*limiter.Request) {
	const decisions = 1000 // per turn
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d := &limiter.Decision{}
	turn := func(l *limiter.Limiter, first int) float64 {
		before := threadTime(b)
		for i := range decisions {
			if err := l.Decide(context.Background(), noon, reqs[(first+i)%len(reqs)], d); err != nil {
				b.Fatal(err)
			}
		}
		return float64(threadTime(b)-before) / decisions
	}
	for i := 0; i < len(reqs); i += decisions {
		turn(both[0], i) // creates all counters
	}
	var plain, more []float64
	for i := 0; b.Loop(); i++ {
		// The two turns use different requests, so neither profits from the other's CPU caches. They alternate in going
		// first.
		x := i % 2
		var ns [2]float64
		ns[x] = turn(both[x], 2*i*decisions)
		ns[1-x] = turn(both[1-x], (2*i+1)*decisions)
		plain, more = append(plain, ns[0]), append(more, ns[1]-ns[0])
	}
	slices.Sort(plain)
	slices.Sort(more)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(plain[len(plain)/2], "ns/decision")
	b.ReportMetric(more[len(more)/2], "more-ns/decision")
}

// threadTime returns the CPU time of this thread, in nanoseconds.
func threadTime(b *testing.B) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return t.Nano()
}
