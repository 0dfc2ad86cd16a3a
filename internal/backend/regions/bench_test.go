package regions_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// BenchmarkEscrow compares takes from an account with takes that a region counts on its own, on the same Redis, in turns of some
// milliseconds. The home answers, and is seldom asked.
func BenchmarkEscrow(b *testing.B) {
	benchmarkMode(b, "escrow", func(l descriptor.Limit) descriptor.Limit { return escrow("a", l) })
}

// BenchmarkEventual does the same with takes that are lowered by what another region has counted.
func BenchmarkEventual(b *testing.B) {
	benchmarkMode(b, "eventual", func(l descriptor.Limit) descriptor.Limit {
		l.Regions = &descriptor.Regions{Mode: descriptor.Eventual}
		return l
	})
}

func benchmarkMode(b *testing.B, mode string, across func(descriptor.Limit) descriptor.Limit) {
	for _, keys := range []int{1, 100, 10_000} {
		for _, callers := range []int{1, 32} {
			b.Run(fmt.Sprintf("keys=%d/callers=%d", keys, callers), func(b *testing.B) { benchmarkTakes(b, keys, callers, mode, across) })
		}
	}
}

func benchmarkTakes(b *testing.B, keys, callers int, named string, across func(descriptor.Limit) descriptor.Limit) {
	w := newWorld(b, setup{regions: 2, processes: 1})
	plain := descriptor.Limit{Requests: 1e9, Window: hour}
	limits := [2]*descriptor.Limit{w.limit("plain", plain), nil}
	far := across(plain)
	if err := far.Compile(); err != nil {
		b.Fatal(err)
	}
	limits[1] = &far
	w.mu.Lock()
	w.every = &far
	w.mu.Unlock()
	p := w.of["b"][0]
	take := func(mode, key int) time.Duration {
		name := fmt.Sprintf("%d-%d", mode, key)
		r := &backend.Request{
			Takes:    []backend.Take{{Key: keyOf(name), Limit: limits[mode], Hits: 1, Origin: originOf(name)}},
			Outcomes: make([]backend.Outcome, 1),
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		defer cancel()
		if err := backend.Await(ctx, p.Store, began, r); err != nil || !r.Outcomes[0].Allowed {
			b.Errorf("%+v, %v", r.Outcomes[0], err)
		}
		return time.Since(began)
	}
	run := func(mode, n int) (all []time.Duration, took time.Duration) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var next atomic.Int64
		began := time.Now()
		for range callers {
			wg.Go(func() {
				var own []time.Duration
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					own = append(own, take(mode, int(i*7919)%keys))
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, own...)
			})
		}
		wg.Wait()
		return all, time.Since(began)
	}
	for mode := range 2 { // both are warm
		run(mode, 3*max(keys, 1000))
	}
	var times [2][]time.Duration
	var spent [2]time.Duration
	b.ResetTimer()
	for b.Loop() {
		for mode := range 2 {
			all, took := run(mode, 200)
			times[mode], spent[mode] = append(times[mode], all...), spent[mode]+took
		}
	}
	for mode, name := range []string{"regional", named} {
		slices.Sort(times[mode])
		n := len(times[mode])
		b.ReportMetric(float64(n)/spent[mode].Seconds(), "takes/s-"+name)
		b.ReportMetric(float64(times[mode][n/2].Microseconds()), "us-p50-"+name)
		b.ReportMetric(float64(times[mode][n*99/100].Microseconds()), "us-p99-"+name)
	}
	b.ReportMetric(0, "ns/op")
}
