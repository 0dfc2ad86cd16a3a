package assigner_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// 20,000 buckets of a stream share one limit, and all report three times. It takes a second if each report looks at one
// subscriber.
func TestManyBucketsOfOneLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN with -short: it takes seconds")
	}
	shared := descriptor.NodeSpec{Key: "k", Value: "customer-*", ShareThreshold: true, Rule: &descriptor.Rule{Limits: []descriptor.Limit{limitOf(1_000_000, descriptor.Second)}}}
	inWorld(t, assigner.Options{MaxBytes: 1 << 30}, []descriptor.NodeSpec{shared}, func(w *world) {
		usages := make([]assigner.Usage, 20_000)
		for k := range usages {
			usages[k] = assigner.Usage{ID: []descriptor.Entry{pair("k", fmt.Sprint("customer-", k))}, Allowed: 1}
		}
		s := w.Open("client")
		for range 3 {
			s.Report(time.Now(), "d", usages)
			w.pass(5 * time.Second)
			held(s)
		}
		all, _, total := w.Shares(time.Now(), "d", nil, 1)
		if total != len(usages) || all[0].Held[0].Assignment.Kind != quota.Tokens {
			t.Errorf("%d buckets: %+v", total, all)
		}
		s.Close(time.Now())
	})
}

// One stream with 20,000 buckets, and 1,000 streams with 100 buckets each: all get assignments, and the size of a
// bucket is logged. The default for MaxBytes suffices for the second, where streams share buckets. Time stands still:
// however long a busy machine takes, no subscription ends.
func TestManyBuckets(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN with -short: it takes seconds")
	}
	for _, c := range []struct{ streams, buckets, bytes int }{{1, 20_000, 1 << 30}, {1000, 100, 0}} {
		t.Run(fmt.Sprintf("%d streams", c.streams), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
				l.Swap(treeOf(t, node("k", limitOf(1000, descriptor.Second))), limiter.Settings{})
				a := assigner.New(assigner.Options{Limiter: l, MaxBytes: c.bytes})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- a.Run(ctx) }()
				defer func() {
					cancel()
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}()
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				streams := make([]*assigner.Stream, c.streams)
				for i := range streams {
					streams[i] = a.Open("client")
					usages := make([]assigner.Usage, c.buckets)
					for k := range usages {
						usages[k] = assigner.Usage{ID: []descriptor.Entry{pair("k", fmt.Sprint("customer-", k))}, Allowed: 1}
					}
					streams[i].Report(time.Now(), "d", usages)
				}
				for _, s := range streams {
					for n := 0; n < c.buckets; {
						all, err := s.Next(ctx, nil)
						if err != nil {
							t.Fatal(err)
						}
						s.Sent(time.Now())
						n += len(all)
					}
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				n := c.streams * c.buckets
				t.Logf("%d subscriptions, %d bytes each", n, (after.HeapAlloc-before.HeapAlloc)/uint64(n))
				if _, _, total := a.Shares(time.Now(), "d", nil, 1); total != c.buckets {
					t.Errorf("%d buckets, want %d", total, c.buckets)
				}
				for _, s := range streams {
					s.Close(time.Now())
				}
			})
		})
	}
}

// BenchmarkShares lists 100 of 100,000 buckets. held-up-ms is the longest time of a report of another stream during a
// list: the median of all lists.
func BenchmarkShares(b *testing.B) {
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{node("k", limitOf(1000, descriptor.Second))}}}, descriptor.Options{})
	if err != nil {
		b.Fatal(err)
	}
	l.Swap(tree, limiter.Settings{})
	a := assigner.New(assigner.Options{Limiter: l, MaxBytes: 1 << 30})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	usages := make([]assigner.Usage, 100_000)
	for k := range usages {
		usages[k] = assigner.Usage{ID: []descriptor.Entry{pair("k", fmt.Sprint("customer-", k))}, Allowed: 1}
	}
	s, other := a.Open("client"), a.Open("other")
	s.Report(time.Now(), "d", usages)
	for n := 0; n < len(usages); {
		all, err := s.Next(ctx, nil)
		if err != nil {
			b.Fatal(err)
		}
		s.Sent(time.Now())
		n += len(all)
	}
	cancel() // nothing but the list and the other stream use the assigner from now on
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	for name, where := range map[string][]descriptor.Entry{"all": nil, "entries": {pair("k", "customer-77")}} {
		b.Run(name, func(b *testing.B) {
			var longest atomic.Int64
			var stop atomic.Bool
			var waits sync.WaitGroup
			waits.Go(func() {
				for !stop.Load() {
					began := time.Now()
					other.Report(began, "d", nil)
					longest.Store(max(longest.Load(), int64(time.Since(began))))
				}
			})
			var each []int64
			for b.Loop() {
				longest.Store(0)
				a.Shares(time.Now(), "d", where, 100)
				each = append(each, longest.Load())
			}
			stop.Store(true)
			waits.Wait()
			slices.Sort(each)
			b.ReportMetric(float64(each[len(each)/2])/1e6, "held-up-ms")
		})
	}
}
