package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	exactLimit    = 1000 // per hour
	exactBy       = 64   // goroutines
	exactAttempts = 200  // of each goroutine
)

// exactness is what a library admitted in all runs.
type exactness struct {
	name     string
	admitted []int
	errors   int
}

// exact asks for one key from many goroutines at once, and counts what is admitted. It does so again with another key. A run in
// which an hour of the clock ends says nothing and is repeated.
func (b *bench) exact(ctx context.Context, libraries []library, redis bool) ([]exactness, error) {
	s := setup{limit: limit{requests: exactLimit, unit: "hour"}, pool: b.pool}
	var all []exactness
	err := b.each(ctx, libraries, s, redis, func(l library, open limiter) {
		if l.paces {
			return
		}
		e := exactness{name: l.name}
		for run := 0; len(e.admitted) < b.repeats; run++ {
			start := time.Now()
			admitted, failed := storm(ctx, open, fmt.Sprintf("storm-%d", run))
			if !start.Truncate(time.Hour).Equal(time.Now().Truncate(time.Hour)) {
				continue
			}
			e.admitted = append(e.admitted, admitted)
			e.errors += failed
		}
		all = append(all, e)
	})
	return all, err
}

// each opens the libraries in turn, with an empty Redis, and measures them.
func (b *bench) each(ctx context.Context, libraries []library, s setup, redis bool, measure func(l library, open limiter)) error {
	if redis {
		s.redis = b.redis.Options().Addr
		if err := b.redis.FlushDB(ctx).Err(); err != nil {
			return fmt.Errorf("empty Redis: %w", err)
		}
	}
	for i, l := range libraries {
		s.prefix = prefix(i)
		open, err := l.open(s)
		if err != nil {
			return fmt.Errorf("open %s: %w", l.name, err)
		}
		measure(l, open)
		if err := open.close(); err != nil {
			return fmt.Errorf("close %s: %w", l.name, err)
		}
	}
	return nil
}

// tally counts answers of many goroutines.
type tally struct{ admitted, failed atomic.Int64 }

func (c *tally) ask(ctx context.Context, l limiter, key string) {
	switch ok, err := l.decide(ctx, key); {
	case err != nil:
		c.failed.Add(1)
	case ok:
		c.admitted.Add(1)
	}
}

func (c *tally) counts() (admitted, failed int) { return int(c.admitted.Load()), int(c.failed.Load()) }

// storm lets all goroutines ask at once.
func storm(ctx context.Context, l limiter, key string) (admitted, failed int) {
	var answers tally
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for range exactBy {
		wg.Go(func() {
			<-begin
			for range exactAttempts {
				answers.ask(ctx, l, key)
			}
		})
	}
	close(begin)
	wg.Wait()
	return answers.counts()
}
