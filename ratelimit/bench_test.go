package ratelimit_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

func open(t testing.TB, o ratelimit.Options) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

const perCustomer = `
domain: api
descriptors:
  - key: customer
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

func BenchmarkAllow(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			l := open(b, ratelimit.Options{Dir: rulefiles.Dir(servicetest.RulesOf(b, perCustomer)), Logger: quiet})
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprintf("customer-%d", i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if ok, err := l.Allow(b.Context(), "api", "customer", keys[i*7919%n]); !ok || err != nil {
					b.Fatal(ok, err)
				}
				i++
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	l := open(b, ratelimit.Options{Dir: rulefiles.Dir(servicetest.RulesOf(b, perCustomer)), Logger: quiet})
	b.ReportAllocs()
	for b.Loop() {
		if d, err := l.Decide(b.Context(), limits.NewRequest("api", "customer", "customer-1")); !d.Allowed || err != nil {
			b.Fatal(d, err)
		}
	}
}

func BenchmarkAllowRedis(b *testing.B) {
	server := redistest.Start(b)
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			l := open(b, ratelimit.Options{Dir: rulefiles.Dir(servicetest.RulesOf(b, perCustomer)), Logger: quiet, Store: redisstore.New(redisstore.Options{URL: server.Addr})})
			keys := make([]string, 100_000)
			for i := range keys {
				keys[i] = fmt.Sprintf("customer-%d", i)
			}
			var next atomic.Int64
			b.ReportAllocs()
			b.SetParallelism((callers + 1) / 2)
			if callers == 1 {
				for b.Loop() {
					if ok, err := l.Allow(b.Context(), "api", "customer", keys[next.Add(7919)%int64(len(keys))]); !ok || err != nil {
						b.Fatal(ok, err)
					}
				}
				return
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if ok, err := l.Allow(b.Context(), "api", "customer", keys[next.Add(7919)%int64(len(keys))]); !ok || err != nil {
						b.Error(ok, err)
						return
					}
				}
			})
		})
	}
}
