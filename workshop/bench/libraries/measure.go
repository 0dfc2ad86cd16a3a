package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// shape is a load that all libraries of a store get.
type shape struct {
	keys       int
	goroutines int
	redis      bool
}

// round is what one library did in one round.
type round struct {
	decisions uint64
	errors    uint64
	took      time.Duration
	cpu       time.Duration // of this process
	redis     time.Duration // CPU of Redis
	allocs    uint64
	bytes     uint64
}

// ns returns the nanoseconds per decision and goroutine: with two goroutines that do not hinder each other it is as with one.
func (r round) ns(goroutines int) float64 {
	return float64(r.took.Nanoseconds()) * float64(goroutines) / float64(max(r.decisions, 1))
}

// per divides by the decisions of the round.
func (r round) per(n uint64) float64 { return float64(n) / float64(max(r.decisions, 1)) }

// rate returns decisions per second.
func (r round) rate() float64 { return float64(r.decisions) / r.took.Seconds() }

// measured is a library with its rounds under one shape.
type measured struct {
	name   string
	rounds []round
	memory float64 // bytes of heap for each key; only in memory

	limiter limiter
}

const (
	warmup = 10 * time.Millisecond
	fillBy = 64 // goroutines that write the keys to Redis before the first round
)

// keyNames returns the keys. They are strings that no library has made itself.
func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("customer-%d", i)
	}
	return names
}

// measure opens the libraries, asks each once for every key, and then takes rounds in turn, each time in another order.
func (b *bench) measure(ctx context.Context, libraries []library, s shape) (all []*measured, err error) {
	keys := keyNames(s.keys)
	set := setup{limit: plentyForFew, pool: b.pool, timed: true}
	if s.keys >= many {
		set.limit = plentyForMany
	}
	if s.redis {
		set.redis = b.redis.Options().Addr
		if err := b.redis.FlushDB(ctx).Err(); err != nil {
			return nil, fmt.Errorf("empty Redis: %w", err)
		}
	}
	defer func() {
		for _, m := range all {
			if e := m.limiter.close(); err == nil {
				err = e
			}
			m.limiter = limiter{} // so that the memory of this load is not counted in the next
		}
	}()
	for i, l := range libraries {
		before := heap()
		set.prefix = prefix(i)
		open, err := l.open(set)
		if err != nil {
			return all, fmt.Errorf("open %s: %w", l.name, err)
		}
		m := &measured{name: l.name, limiter: open}
		all = append(all, m)
		if err := fill(ctx, open, keys, s.redis); err != nil {
			return all, fmt.Errorf("fill %s: %w", l.name, err)
		}
		if !s.redis {
			m.memory = float64(max(0, int64(heap())-int64(before))) / float64(len(keys))
		}
	}
	for range b.rounds {
		for _, i := range rand.Perm(len(all)) {
			m := all[i]
			if _, err := b.take(ctx, m.limiter, keys, s, warmup); err != nil {
				return all, fmt.Errorf("measure %s: %w", m.name, err)
			}
			r, err := b.take(ctx, m.limiter, keys, s, b.duration)
			if err != nil {
				return all, fmt.Errorf("measure %s: %w", m.name, err)
			}
			m.rounds = append(m.rounds, r)
		}
	}
	return all, nil
}

// fill asks once for every key.
func fill(ctx context.Context, l limiter, keys []string, redis bool) error {
	by := 1
	if redis {
		by = min(fillBy, len(keys))
	}
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for g := range by {
		wg.Go(func() {
			for i := g; i < len(keys); i += by {
				if ok, err := l.decide(ctx, keys[i]); err != nil {
					failed.Store(&err)
				} else if !ok {
					err := fmt.Errorf("the first request of %s is denied", keys[i])
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// take loads a library for one round. Every request must be admitted; errors are counted.
func (b *bench) take(ctx context.Context, l limiter, keys []string, s shape, d time.Duration) (r round, err error) {
	runtime.GC()
	var stop atomic.Bool
	var decisions, failed, refused atomic.Uint64
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for range s.goroutines {
		seed := rand.IntN(len(keys))
		wg.Go(func() {
			<-begin
			n, bad := uint64(0), uint64(0)
			for i := seed; !stop.Load(); {
				// A step that shares no divisor with the number of keys visits all of them, in an order that caches do not foresee.
				if i += 7919; i >= len(keys) {
					i %= len(keys)
				}
				switch ok, err := l.decide(ctx, keys[i]); {
				case err != nil:
					bad++
				case ok:
					n++
				default:
					refused.Add(1)
				}
			}
			decisions.Add(n)
			failed.Add(bad)
		})
	}
	redisBefore, err := b.redisCPU(ctx, s)
	if err != nil {
		return r, err
	}
	var from, to runtime.MemStats
	runtime.ReadMemStats(&from)
	cpu := processCPU()
	start := time.Now()
	timer := time.AfterFunc(d, func() { stop.Store(true) })
	close(begin)
	wg.Wait()
	r.took = time.Since(start)
	r.cpu = processCPU() - cpu
	runtime.ReadMemStats(&to)
	timer.Stop()
	redisAfter, err := b.redisCPU(ctx, s)
	if err != nil {
		return r, err
	}
	r.redis = redisAfter - redisBefore
	r.decisions, r.errors = decisions.Load(), failed.Load()
	r.allocs, r.bytes = to.Mallocs-from.Mallocs, to.TotalAlloc-from.TotalAlloc
	if n := refused.Load(); n > 0 {
		return r, fmt.Errorf("%d requests were denied, of limits that are not expected to be reached: take fewer rounds", n)
	}
	return r, nil
}

// prefix makes the keys of the library at a place in a list its own.
func prefix(i int) string { return string(rune('a'+i)) + ":" }

// heap returns the bytes in use. What ended before takes two collections to go if it has a finalizer.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// processCPU returns the CPU time of this process, user and system.
func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// redisCPU returns the CPU time that Redis has used; 0 if the shape does not use it.
func (b *bench) redisCPU(ctx context.Context, s shape) (time.Duration, error) {
	if !s.redis {
		return 0, nil
	}
	text, err := b.redis.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, fmt.Errorf("ask Redis for its CPU time: %w", err)
	}
	return cpuOf(text)
}

// newClient returns a client for the questions of the measurement itself.
func newClient(address string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: address, PoolSize: 2})
}
