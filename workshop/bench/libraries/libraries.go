package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing/fstest"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/throttled/throttled/v2/store/memstore"
	ululelimiter "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	uber "go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// limit is what each key may use: requests per unit, which is a second, an hour or a day. A bucket holds as many.
type limit struct {
	requests int
	unit     string
}

// What keys may use where times are measured. No round reaches it. With many keys it is so small that a bucket is not full again
// when its key comes next: a store may then forget the key, and would be measured with other work than usual.
var (
	plentyForFew  = limit{requests: 4_000_000_000, unit: "hour"}
	plentyForMany = limit{requests: 1000, unit: "day"}
)

const many = 100_000 // keys

func (l limit) period() time.Duration {
	switch l.unit {
	case "second":
		return time.Second
	case "day":
		return 24 * time.Hour
	}
	return time.Hour
}

// setup is what a library is opened with.
type setup struct {
	limit  limit
	redis  string // address; empty: count in memory
	pool   int    // connections to Redis
	prefix string // of ratelimitd's keys in Redis: the keys of the other libraries differ anyway
	timed  bool   // times are measured: a library that paces must not wait
	room   int    // the most keys, for stores that have a bound; 0: the default of ratelimitd, 2,000,000
}

// limiter is an open library.
type limiter struct {
	decide func(ctx context.Context, key string) (bool, error)
	close  func() error
}

// library is one that is measured, in one way of using it.
type library struct {
	name string
	open func(s setup) (limiter, error)

	promise promise

	paces bool // delays instead of denying
}

const (
	own         = "ratelimitd" // the names of our libraries begin with it
	defaultRoom = 2_000_000    // of ratelimitd
)

// inMemory are the libraries that count in memory.
var inMemory = []library{
	{name: "ratelimitd, fixed window", promise: clockWindows, open: ours("")},
	{name: "ratelimitd, fixed window, Decide", promise: clockWindows, open: oursDecide("")},
	{name: "ratelimitd, token bucket", promise: bucket, open: ours(", algorithm: token_bucket")},
	{name: "throttled, GCRA, LRU", promise: bucket, open: throttledMemory(true)},
	{name: "throttled, GCRA, no bound", promise: bucket, open: throttledMemory(false)},
	{name: "ulule/limiter, fixed window", promise: firstHitWindows, open: ululeMemory},
	{name: "x/time/rate in a sync.Map", promise: bucket, open: inSyncMap(newRate, allowRate)},
	{name: "x/time/rate in a map with a mutex", promise: bucket, open: inMap(newRate, allowRate)},
	{name: "uber-go/ratelimit in a sync.Map", promise: pacer, open: inSyncMap(newUber, takeUber), paces: true},
	{name: "uber-go/ratelimit in a map with a mutex", promise: pacer, open: inMap(newUber, takeUber), paces: true},
}

// onRedis are the libraries that count in Redis.
var onRedis = []library{
	{name: "ratelimitd, fixed window", promise: clockWindows, open: ours("")},
	{name: "ratelimitd, token bucket", promise: bucket, open: ours(", algorithm: token_bucket")},
	{name: "ratelimitd, fixed window, leased", promise: clockWindows, open: ours(", lease: true")},
	{name: "redis_rate, GCRA", promise: bucket, open: redisRate},
	{name: "throttled, GCRA", promise: bucket, open: throttledRedis},
	{name: "ulule/limiter, fixed window", promise: firstHitWindows, open: ululeRedis},
}

// shaped are algorithms that only ratelimitd has. What they admit in any span of a window differs.
var shaped = []library{
	{name: "ratelimitd, sliding window", open: ours(", algorithm: sliding_window")},
	{name: "ratelimitd, sliding log", open: ours(", algorithm: sliding_log")},
}

func ours(algorithm string) func(setup) (limiter, error) {
	return func(s setup) (limiter, error) {
		l, err := openOurs(s, algorithm)
		if err != nil {
			return limiter{}, err
		}
		decide := func(ctx context.Context, key string) (bool, error) { return l.Allow(ctx, "api", "customer", key) }
		return limiter{decide: decide, close: l.Close}, nil
	}
}

func oursDecide(algorithm string) func(setup) (limiter, error) {
	return func(s setup) (limiter, error) {
		l, err := openOurs(s, algorithm)
		if err != nil {
			return limiter{}, err
		}
		decide := func(ctx context.Context, key string) (bool, error) {
			d, err := l.Decide(ctx, limits.NewRequest("api", "customer", key))
			return d.Allowed, err
		}
		return limiter{decide: decide, close: l.Close}, nil
	}
}

// openOurs opens a limiter with one rule.
func openOurs(s setup, algorithm string) (*ratelimit.Limiter, error) {
	rule := fmt.Sprintf("domain: api\ndescriptors:\n  - key: customer\n    rate_limit: {unit: %s, requests_per_unit: %d%s}\n",
		s.limit.unit, s.limit.requests, algorithm)
	o := ratelimit.Options{
		Files: fstest.MapFS{"api.yaml": {Data: []byte(rule)}}, Strict: true, MaxCounters: s.room, Logger: slog.New(slog.DiscardHandler),
	}
	if s.redis != "" {
		o.KeyPrefix = s.prefix
		o.Redis = &ratelimit.Redis{URL: s.redis, PoolSize: s.pool}
	}
	return ratelimit.Open(context.Background(), o)
}

func throttledMemory(bounded bool) func(setup) (limiter, error) {
	return func(s setup) (limiter, error) {
		room := s.room
		if bounded && room == 0 {
			room = defaultRoom
		}
		if !bounded {
			room = 0
		}
		store, err := memstore.NewCtx(room)
		if err != nil {
			return limiter{}, err
		}
		return newThrottled(s, store, func() error { return nil })
	}
}

func throttledRedis(s setup) (limiter, error) {
	client := s.client()
	store, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return limiter{}, errors.Join(err, client.Close())
	}
	return newThrottled(s, store, client.Close)
}

func newThrottled(s setup, store throttled.GCRAStoreCtx, end func() error) (limiter, error) {
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(s.limit.requests, s.limit.period()),
		MaxBurst: s.limit.requests - 1,
	})
	if err != nil {
		return limiter{}, errors.Join(err, end())
	}
	decide := func(ctx context.Context, key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited && err == nil, err
	}
	return limiter{decide: decide, close: end}, nil
}

func ululeMemory(s setup) (limiter, error) {
	return newUlule(s, ululememory.NewStore(), func() error { return nil }), nil
}

func ululeRedis(s setup) (limiter, error) {
	client := s.client()
	store, err := ululeredis.NewStore(client)
	if err != nil {
		return limiter{}, errors.Join(err, client.Close())
	}
	return newUlule(s, store, client.Close), nil
}

func newUlule(s setup, store ululelimiter.Store, end func() error) limiter {
	l := ululelimiter.New(store, ululelimiter.Rate{Period: s.limit.period(), Limit: int64(s.limit.requests)})
	decide := func(ctx context.Context, key string) (bool, error) {
		c, err := l.Get(ctx, key)
		return !c.Reached && err == nil, err
	}
	return limiter{decide: decide, close: end}
}

func redisRate(s setup) (limiter, error) {
	client := s.client()
	l := redis_rate.NewLimiter(client)
	per := redis_rate.Limit{Rate: s.limit.requests, Burst: s.limit.requests, Period: s.limit.period()}
	decide := func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, key, per)
		return err == nil && r.Allowed > 0, err
	}
	return limiter{decide: decide, close: client.Close}, nil
}

func (s setup) client() *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: s.redis, PoolSize: s.pool})
}

func newRate(s setup) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(float64(s.limit.requests)/s.limit.period().Seconds()), s.limit.requests)
}

func allowRate(l *rate.Limiter) bool { return l.Allow() }

// newUber returns a limiter. Where times are measured it never waits, because 1,000,000,000 requests a second may pass.
func newUber(s setup) uber.Limiter {
	if s.timed {
		return uber.New(int(time.Second / time.Nanosecond))
	}
	return uber.New(s.limit.requests, uber.Per(s.limit.period()))
}

func takeUber(l uber.Limiter) bool {
	l.Take()
	return true
}

// inSyncMap keeps a limiter for each key in a sync.Map. It never evicts one.
func inSyncMap[L any](create func(setup) L, allow func(L) bool) func(setup) (limiter, error) {
	return func(s setup) (limiter, error) {
		var all sync.Map
		decide := func(_ context.Context, key string) (bool, error) {
			l, ok := all.Load(key)
			if !ok {
				l, _ = all.LoadOrStore(key, create(s))
			}
			return allow(l.(L)), nil
		}
		return limiter{decide: decide, close: func() error { return nil }}, nil
	}
}

// inMap keeps a limiter for each key in a map with a mutex. It never evicts one.
func inMap[L any](create func(setup) L, allow func(L) bool) func(setup) (limiter, error) {
	return func(s setup) (limiter, error) {
		var mu sync.Mutex
		all := make(map[string]L)
		decide := func(_ context.Context, key string) (bool, error) {
			mu.Lock()
			l, ok := all[key]
			if !ok {
				l = create(s)
				all[key] = l
			}
			mu.Unlock()
			return allow(l), nil
		}
		return limiter{decide: decide, close: func() error { return nil }}, nil
	}
}
