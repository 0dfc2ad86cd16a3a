package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// promise is the most that an algorithm may admit between two times, of a limit of n requests a second.
type promise func(n int, from, to time.Time) int

// clockWindows are windows that begin with each second of the clock.
func clockWindows(n int, from, to time.Time) int {
	return n * int(to.Truncate(time.Second).Sub(from.Truncate(time.Second))/time.Second+1)
}

// firstHitWindows are windows that begin with the first request after the last one.
func firstHitWindows(n int, from, to time.Time) int { return n * int(to.Sub(from)/time.Second+1) }

// bucket holds n requests, and gets n a second.
func bucket(n int, from, to time.Time) int {
	return n + int(math.Ceil(float64(n)*to.Sub(from).Seconds()))
}

// pacer lets one request pass after the other, and makes up for at most 10 that it could have passed.
func pacer(n int, from, to time.Time) int {
	const slack = 10
	return slack + 1 + int(math.Ceil(float64(n)*to.Sub(from).Seconds()))
}

const sustained = 500 * time.Millisecond

// excess is what a library admitted, and what its algorithm may admit, in each run.
type excess struct {
	name     string
	promised []int
	admitted []int
	errors   int
}

// sustain asks for one key without pause, from many goroutines, and compares what is admitted with what the algorithm of the
// library may admit in that time.
func (b *bench) sustain(ctx context.Context, libraries []library, redis bool) ([]excess, error) {
	s := setup{limit: limit{requests: spanLimit, unit: "second"}, pool: b.pool}
	var all []excess
	err := b.each(ctx, libraries, s, redis, func(l library, open limiter) {
		e := excess{name: l.name}
		for run := range b.repeats {
			key := fmt.Sprintf("sustained-%d", run)
			from := time.Now()
			admitted, failed := pressure(ctx, open, key)
			e.promised = append(e.promised, l.promise(spanLimit, from, time.Now()))
			e.admitted = append(e.admitted, admitted)
			e.errors += failed
		}
		all = append(all, e)
	})
	return all, err
}

// pressure asks without pause, and returns what was admitted.
func pressure(ctx context.Context, l limiter, key string) (admitted, failed int) {
	var answers tally
	var stop atomic.Bool
	timer := time.AfterFunc(sustained, func() { stop.Store(true) })
	defer timer.Stop()
	var wg sync.WaitGroup
	for range exactBy {
		wg.Go(func() {
			for !stop.Load() {
				answers.ask(ctx, l, key)
				runtime.Gosched() // other goroutines run between two requests, as in a server
			}
		})
	}
	wg.Wait()
	return answers.counts()
}
