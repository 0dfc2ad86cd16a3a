package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// fleetRules are limits that envoyproxy/ratelimit supports too, except the last one.
const fleetRules = `
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 500}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 500, lease: true}}
  - {key: few, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 10}}
  - {key: path, value: "/a/*", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: ours, rate_limit: {unit: year, requests_per_unit: 10, algorithm: sliding_window}}
`

// otherFleet counts as a process of envoyproxy/ratelimit does: its keys, INCRBY, and EXPIRE with every hit.
type otherFleet struct {
	redis  *goredis.Client
	prefix string
}

// hit adds one to d_<key>_<value> and reports whether the counter is within the limit.
func (f otherFleet) hit(ctx context.Context, key, value string, unit time.Duration, limit int64) (bool, error) {
	seconds := int64(unit / time.Second)
	name := fmt.Sprintf("%sd_%s_%s_%d", f.prefix, key, value, time.Now().Unix()/seconds*seconds)
	pipe := f.redis.Pipeline()
	count := pipe.IncrBy(ctx, name, 1)
	pipe.Expire(ctx, name, unit+time.Minute)
	if _, err := pipe.Exec(ctx); err != nil {
		return false, err
	}
	return count.Val() <= limit, nil
}

const year = 365 * 24 * time.Hour

// TestBothFleetsCountTogether lets two of our processes and one of the other fleet count under one limit.
func TestBothFleetsCountTogether(t *testing.T) {
	r := redistest.Start(t)
	other := otherFleet{r.Client(t), "p:"}
	env := map[string]string{
		"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s", "REDIS_KEY_FORMAT": "lyft", "CACHE_KEY_PREFIX": "p:", "LOCAL_CACHE_SIZE_IN_BYTES": "1000000",
	}
	var ours []ratelimitv3.RateLimitServiceClient
	rules := rulesOf(t, fleetRules)
	for range 2 {
		ours = append(ours, ratelimitv3.NewRateLimitServiceClient(dial(t, startProcess(t, env, "--rules", rules).GRPC)))
	}
	for _, key := range []string{"plain", "leased"} {
		t.Run(key, func(t *testing.T) {
			// Each process is connected before the storm starts. Otherwise the storm could be over before a process takes part.
			warm := int64(0)
			for _, c := range ours {
				answer, err := c.ShouldRateLimit(t.Context(), ask("d", key, "v"))
				if err != nil || answer.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
					t.Fatal(answer, err)
				}
				warm++
			}
			var theirs atomic.Int64
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					for range 60 {
						ok, err := other.hit(t.Context(), key, "v", year, 500)
						if err != nil {
							t.Error(err)
							return
						}
						if ok {
							theirs.Add(1)
						}
					}
				})
			}
			admitted := warm + storm(t, ours, ask("d", key, "v"))
			wg.Wait()
			sum := admitted + theirs.Load()
			if least := map[string]int64{"plain": 500, "leased": 475}[key]; sum > 500 || sum < least || admitted == 0 || theirs.Load() == 0 {
				t.Errorf("we admitted %d and the others %d, the limit is 500", admitted, theirs.Load())
			}
			t.Logf("we admitted %d, the others %d", admitted, theirs.Load())
		})
	}
}

// Counters that the other fleet has too use its keys, with a number as INCRBY writes it. The other counters keep our
// keys.
func TestLyftKeysInRedis(t *testing.T) {
	r := redistest.Start(t)
	admin := r.Client(t)
	p := startProcess(t, map[string]string{
		"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s", "REDIS_KEY_FORMAT": "lyft", "CACHE_KEY_PREFIX": "p:", "EXPIRATION_JITTER_MAX_SECONDS": "0",
		"LOCAL_CACHE_SIZE_IN_BYTES": "1000000", "USE_CALENDAR_MONTH_RATE_LIMIT": "true",
	}, "--rules", rulesOf(t, fleetRules))
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	do := func(req *ratelimitv3.RateLimitRequest) *ratelimitv3.RateLimitResponse_DescriptorStatus {
		t.Helper()
		got, err := client.ShouldRateLimit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return got.GetStatuses()[0]
	}
	holds := func(key, want string) {
		t.Helper()
		if got := admin.Get(t.Context(), key).Val(); got != want {
			t.Errorf("%s holds %q, want %q; there are %q", key, got, want, admin.Keys(t.Context(), "*").Val())
		}
	}
	at := func(unit time.Duration) int64 { s := int64(unit / time.Second); return time.Now().Unix() / s * s }
	const day = 24 * time.Hour

	// Denied hits count until the denial cache answers. A refund returns hits and clears the cache entry.
	few := fmt.Sprintf("p:d_few_v_%d", at(day))
	for range 3 {
		do(ask("d", "few", "v"))
	}
	holds(few, "3")
	if left := admin.TTL(t.Context(), few).Val(); left < day-time.Minute || left > day {
		t.Errorf("%s lives %v, want a day", few, left)
	}
	if s := do(ask("d", "few", "v")); s.GetCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
		t.Errorf("%v", s)
	}
	holds(few, "3")
	refund := ask("d", "few", "v")
	refund.Descriptors[0].IsNegativeHits = true
	refund.Descriptors[0].HitsAddend = wrapperspb.UInt64(2)
	if s := do(refund); s.GetLimitRemaining() != 1 {
		t.Errorf("after a refund: %v", s)
	}
	holds(few, "1")
	peek := ask("d", "few", "v")
	peek.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
	if s := do(peek); s.GetLimitRemaining() != 1 || s.GetCode() != ratelimitv3.RateLimitResponse_OK {
		t.Errorf("a peek: %v", s)
	}

	// The key contains the pattern, not the value, unless the request brings its own limit.
	do(ask("d", "path", "/a/1"))
	do(ask("d", "path", "/a/2"))
	holds(fmt.Sprintf("p:d_path_/a/*_%d", at(year)), "2")
	limited := ask("d", "path", "/a/1")
	limited.Descriptors[0].Limit = &ratelimitv3common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_YEAR}
	do(limited)
	holds(fmt.Sprintf("p:d_path_/a/1_%d", at(year)), "1")

	// A month is a calendar month, including in a limit that a request brings.
	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	limited = ask("d", "month", "v")
	limited.Descriptors[0].Limit = &ratelimitv3common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_MONTH}
	for i, req := range []*ratelimitv3.RateLimitRequest{ask("d", "month", "v"), limited} {
		s := do(req)
		if off := time.Until(month.AddDate(0, 1, 0)) - s.GetDurationUntilReset().AsDuration(); off.Abs() > 5*time.Second {
			t.Errorf("a month resets in %v", s.GetDurationUntilReset().AsDuration())
		}
		if unit := s.GetCurrentLimit().GetUnit(); unit != ratelimitv3.RateLimitResponse_RateLimit_MONTH {
			t.Errorf("the unit is %v", unit)
		}
		holds(fmt.Sprintf("p:d_month_v_%d", month.Unix()), strconv.Itoa(i+1))
	}

	do(ask("d", "ours", "v"))
	if keys := admin.Keys(t.Context(), "p:d|*").Val(); !slices.Equal(keys, []string{"p:d|ours=v|s31536000"}) {
		t.Errorf("of our own keys there are %q", keys)
	}
}

// Processes with different formats or prefixes share no counters, in our own format too.
func TestKeyFormatsAndPrefixes(t *testing.T) {
	racetest.Sequential(t)
	r := redistest.Start(t)
	rules := rulesOf(t, fleetRules)
	left := func(env map[string]string) uint32 {
		t.Helper()
		all := map[string]string{"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s"}
		for k, v := range env {
			all[k] = v
		}
		client := ratelimitv3.NewRateLimitServiceClient(dial(t, startProcess(t, all, "--rules", rules).GRPC))
		got, err := client.ShouldRateLimit(t.Context(), ask("d", "plain", "v"))
		if err != nil {
			t.Fatal(err)
		}
		return got.GetStatuses()[0].GetLimitRemaining()
	}
	for _, c := range []struct {
		env  map[string]string
		want uint32
	}{
		{nil, 499},
		{map[string]string{"REDIS_KEY_FORMAT": "ratelimitd"}, 498},
		{map[string]string{"REDIS_KEY_FORMAT": "lyft"}, 499},
		{map[string]string{"REDIS_KEY_FORMAT": "lyft", "CACHE_KEY_PREFIX": "p:"}, 499},
		{map[string]string{"REDIS_KEY_FORMAT": "lyft", "CACHE_KEY_PREFIX": "p:"}, 498},
		{map[string]string{"CACHE_KEY_PREFIX": "p:"}, 499},
		{map[string]string{"CACHE_KEY_PREFIX": "p:"}, 498},
		{map[string]string{"REDIS_KEY_FORMAT": "lyft"}, 498},
		{nil, 497},
	} {
		if got := left(c.env); got != c.want {
			t.Errorf("with %v %d are left, want %d", c.env, got, c.want)
		}
	}
}
