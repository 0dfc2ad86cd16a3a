package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	spanLimit = 1000 // per second
	spanIdle  = 900 * time.Millisecond
	spanBusy  = 1200 * time.Millisecond

	// spanLength is a second, less what algorithms lose that count in whole microseconds.
	spanLength = time.Second - 2*time.Microsecond
)

// admission is one request that was admitted, at some time between two.
type admission struct{ from, to time.Duration }

// spans is what a library admitted in the second that has most of it, in each run.
type spans struct {
	name     string
	admitted []int
	errors   int
}

// span lets each library fill a window late: one request at the start of a second of the clock, which begins all kinds of windows,
// and from 0.9 s on as many as 64 goroutines can ask, until the next window has been used too.
func (b *bench) span(ctx context.Context, libraries []library, redis bool) ([]spans, error) {
	s := setup{limit: limit{requests: spanLimit, unit: "second"}, pool: b.pool}
	var all []spans
	err := b.each(ctx, libraries, s, redis, func(l library, open limiter) {
		e := spans{name: l.name}
		for run := range b.spanRuns() {
			admissions, failed := late(ctx, open, fmt.Sprintf("late-%d", run))
			e.admitted = append(e.admitted, most(admissions, spanLength))
			e.errors += failed
		}
		all = append(all, e)
	})
	return all, err
}

// spanRuns is how often each library is asked: a run takes seconds.
func (b *bench) spanRuns() int { return max(1, b.repeats/4) }

// late sends the load of one run.
func late(ctx context.Context, l limiter, key string) (all []admission, failed int) {
	var mu sync.Mutex
	<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second + time.Millisecond)))
	start := time.Now()
	ask := func(to []admission) ([]admission, error) {
		from := time.Since(start)
		ok, err := l.decide(ctx, key)
		if ok {
			to = append(to, admission{from, time.Since(start)})
		}
		return to, err
	}
	if first, err := ask(nil); err == nil {
		all = first
	}
	<-time.After(spanIdle - time.Since(start))
	var wg sync.WaitGroup
	for range exactBy {
		wg.Go(func() {
			var own []admission
			bad := 0
			for time.Since(start) < spanIdle+spanBusy {
				var err error
				if own, err = ask(own); err != nil {
					bad++
				}
				runtime.Gosched() // so that a goroutine is rarely stopped between a decision and its time
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
			failed += bad
		})
	}
	wg.Wait()
	return all, failed
}

// most returns how many requests were surely admitted in the same span, for the span with most of them. A request that may lie
// outside does not count.
func most(all []admission, span time.Duration) (n int) {
	byEnd := slices.Clone(all)
	slices.SortFunc(byEnd, func(a, b admission) int { return int(a.to - b.to) })
	for _, first := range all {
		inside := 0
		for _, a := range byEnd {
			if a.to >= first.from+span {
				break
			}
			if a.from >= first.from {
				inside++
			}
		}
		n = max(n, inside)
	}
	return n
}
