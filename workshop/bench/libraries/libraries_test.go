// Package libraries compares package ratelimit with other libraries that limit rates in a Go program: the cost of a
// decision, and whether too many requests pass when many goroutines ask at the same time.
// docs/contributing/libraries.md has the figures.
package libraries

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/throttled/throttled/v2/store/memstore"
	ululelimiter "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"golang.org/x/time/rate"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
)

// setup is the limit of each key, and the place where its requests are counted.
type setup struct {
	requests int
	per      time.Duration // an hour or a day
	redis    string        // address; empty: in memory
	places   int           // bound on keys, in stores that have one. 0: 2,000,000, the default of ratelimitd
}

// background is the context of every call. A benchmark's own context is cancelled before its cleanup runs.
var background = context.Background()

// decide asks whether one more request of a key may pass.
type decide = func(key string) (bool, error)

// open creates a limiter. It is closed when the benchmark ends.
type open = func(b testing.TB, s setup) decide

// library is one way of using a library.
type library struct {
	name string
	open open
}

var inMemory = []library{
	{"ratelimitd-Keyed-fixed-window", func(b testing.TB, s setup) decide { return keyed(b, s, ratelimit.Per(uint64(s.requests), s.per)) }},
	{"ratelimitd-Keyed-token-bucket", func(b testing.TB, s setup) decide {
		return keyed(b, s, ratelimit.Bucket(uint64(s.requests), s.per, uint64(s.requests)))
	}},
	{"ratelimitd-fixed-window", ours("")},
	{"ratelimitd-fixed-window-Decide", oursDecide},
	{"ratelimitd-token-bucket", ours(", algorithm: token_bucket")},
	{"throttled-LRU", throttledMemory(true)},
	{"throttled-unbounded", throttledMemory(false)},
	{"ulule-fixed-window", func(_ testing.TB, s setup) decide { return ulule(s, ululememory.NewStore()) }},
	{"sethvargo-token-bucket", sethvargo},
	{"x-time-rate-sync.Map", rateInSyncMap},
	{"x-time-rate-mutex", rateInMap},
}

var inRedis = []library{
	{"ratelimitd-fixed-window", ours("")},
	{"ratelimitd-token-bucket", ours(", algorithm: token_bucket")},
	{"ratelimitd-fixed-window-leased", ours(", lease: true")},
	{"redis_rate-GCRA", redisRate},
	{"throttled-GCRA", throttledRedis},
	{"ulule-fixed-window", ululeRedis},
}

func openOurs(b testing.TB, s setup, algorithm string) *ratelimit.Limiter {
	unit := map[time.Duration]string{time.Hour: "hour", day: "day"}[s.per]
	rule := fmt.Sprintf("domain: api\ndescriptors:\n  - key: customer\n    rate_limit: {unit: %s, requests_per_unit: %d%s}\n", unit, s.requests, algorithm)
	o := ratelimit.Options{
		Files: fstest.MapFS{"api.yaml": {Data: []byte(rule)}}, Strict: true, MaxCounters: s.places, Logger: slog.New(slog.DiscardHandler),
	}
	if s.redis != "" {
		o.Store = redisstore.New(redisstore.Options{URL: s.redis, PoolSize: connections})
	}
	l, err := ratelimit.Open(background, o)
	must(b, err)
	b.Cleanup(func() { must(b, l.Close()) })
	return l
}

func ours(algorithm string) open {
	return func(b testing.TB, s setup) decide {
		l := openOurs(b, s, algorithm)
		return func(key string) (bool, error) { return l.Allow(background, "api", "customer", key) }
	}
}

func keyed(b testing.TB, s setup, l ratelimit.Limit) decide {
	k, err := ratelimit.OpenKeyed(background, l, ratelimit.Options{MaxCounters: s.places})
	must(b, err)
	b.Cleanup(func() { must(b, k.Close()) })
	return func(key string) (bool, error) { return k.Allow(background, key) }
}

func oursDecide(b testing.TB, s setup) decide {
	l := openOurs(b, s, "")
	return func(key string) (bool, error) {
		d, err := l.Decide(background, limits.NewRequest("api", "customer", key))
		return d.Allowed, err
	}
}

func throttledMemory(bounded bool) open {
	return func(b testing.TB, s setup) decide {
		places := 0
		if bounded {
			places = cmp.Or(s.places, 2_000_000)
		}
		store, err := memstore.NewCtx(places)
		must(b, err)
		return gcra(b, s, store)
	}
}

func throttledRedis(b testing.TB, s setup) decide {
	store, err := goredisstore.NewCtx(client(b, s), "throttled:")
	must(b, err)
	return gcra(b, s, store)
}

func gcra(b testing.TB, s setup, store throttled.GCRAStoreCtx) decide {
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerDuration(s.requests, s.per), MaxBurst: s.requests - 1})
	must(b, err)
	return func(key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(background, key, 1)
		return !limited && err == nil, err
	}
}

func ululeRedis(b testing.TB, s setup) decide {
	store, err := ululeredis.NewStore(client(b, s))
	must(b, err)
	return ulule(s, store)
}

func ulule(s setup, store ululelimiter.Store) decide {
	l := ululelimiter.New(store, ululelimiter.Rate{Period: s.per, Limit: int64(s.requests)})
	return func(key string) (bool, error) {
		c, err := l.Get(background, key)
		return !c.Reached && err == nil, err
	}
}

func redisRate(b testing.TB, s setup) decide {
	l := redis_rate.NewLimiter(client(b, s))
	return func(key string) (bool, error) {
		r, err := l.Allow(background, key, redis_rate.Limit{Rate: s.requests, Burst: s.requests, Period: s.per})
		return err == nil && r.Allowed > 0, err
	}
}

func sethvargo(b testing.TB, s setup) decide {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(s.requests), Interval: s.per})
	must(b, err)
	b.Cleanup(func() { must(b, store.Close(background)) })
	return func(key string) (bool, error) {
		_, _, _, ok, err := store.Take(background, key)
		return ok, err
	}
}

func newRate(s setup) *rate.Limiter {
	return rate.NewLimiter(rate.Every(s.per/time.Duration(s.requests)), s.requests)
}

func rateInSyncMap(_ testing.TB, s setup) decide {
	var all sync.Map
	return func(key string) (bool, error) {
		l, ok := all.Load(key)
		if !ok {
			l, _ = all.LoadOrStore(key, newRate(s))
		}
		return l.(*rate.Limiter).Allow(), nil
	}
}

func rateInMap(_ testing.TB, s setup) decide {
	var mu sync.Mutex
	all := make(map[string]*rate.Limiter)
	return func(key string) (bool, error) {
		mu.Lock()
		l, ok := all[key]
		if !ok {
			l = newRate(s)
			all[key] = l
		}
		mu.Unlock()
		return l.Allow(), nil
	}
}

func client(b testing.TB, s setup) *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: s.redis, PoolSize: connections})
	b.Cleanup(func() { must(b, c.Close()) })
	return c
}

func must(b testing.TB, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}
