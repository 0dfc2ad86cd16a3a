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
	if redis {
		s.redis = b.redis.Options().Addr
		if err := b.redis.FlushDB(ctx).Err(); err != nil {
			return nil, fmt.Errorf("empty Redis: %w", err)
		}
	}
	var all []exactness
	for i, l := range libraries {
		s.prefix = prefix(i)
		if l.paces {
			continue
		}
		open, err := l.open(s)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", l.name, err)
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
		if err := open.close(); err != nil {
			return nil, fmt.Errorf("close %s: %w", l.name, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// storm lets all goroutines ask at once.
func storm(ctx context.Context, l limiter, key string) (admitted, failed int) {
	var yes, bad atomic.Int64
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for range exactBy {
		wg.Go(func() {
			<-begin
			for range exactAttempts {
				switch ok, err := l.decide(ctx, key); {
				case err != nil:
					bad.Add(1)
				case ok:
					yes.Add(1)
				}
			}
		})
	}
	close(begin)
	wg.Wait()
	return int(yes.Load()), int(bad.Load())
}
