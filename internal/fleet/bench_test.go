package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
	"github.com/ratelimitd/ratelimitd/internal/servicetest"
)

// BenchmarkThousand measures an announcement and a list with the most processes.
func BenchmarkThousand(b *testing.B) {
	r := redistest.Start(b)
	f := New(Options{Client: servicetest.Connect(b, redisconn.Options{URL: r.Addr}), Self: func() Process { return named("ratelimitd-7c9f8d6b5-x2x4q") }})
	client := r.Client(b)
	p := named("ratelimitd-7c9f8d6b5-x2x4q")
	p.Overrides = Overrides{Source: OverridesInRedis, Version: 1234, Earlier: 1234, Count: 100_000}
	p.Redis, p.Caches = []Redis{{Name: "redis", Connections: 12}}, []Cache{{"leases", 100}, {"over-limit cache", 1000}}
	text := p.encode()
	pipe, now := client.Pipeline(), float64(time.Now().UnixMilli())
	for i := range maxProcesses - 1 {
		name := fmt.Sprintf("%016x", i)
		pipe.ZAdd(b.Context(), f.seenKey(), goredis.Z{Score: now, Member: name})
		pipe.HSet(b.Context(), f.saidKey(), name, text)
	}
	if _, err := pipe.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
	stats := func(b *testing.B) (calls, us float64) {
		text, err := client.Info(b.Context(), "commandstats").Result()
		if err != nil {
			b.Fatal(err)
		}
		_, after, _ := strings.Cut(text, "cmdstat_evalsha:")
		_, _ = fmt.Sscanf(after, "calls=%g,usec=%g,", &calls, &us) // 0 before the first call
		return calls, us
	}
	for _, read := range []bool{false, true} {
		b.Run(fmt.Sprintf("list=%v", read), func(b *testing.B) {
			calls, us := stats(b)
			for b.Loop() {
				if err := f.announce(b.Context(), read); err != nil {
					b.Fatal(err)
				}
			}
			callsNow, usNow := stats(b)
			b.ReportMetric((callsNow-calls)/float64(b.N), "calls/op")
			b.ReportMetric((usNow-us)/float64(b.N), "us-in-redis/op")
			b.ReportMetric((usNow-us)/(callsNow-calls), "us-in-redis/call")
			b.ReportMetric(float64(len(text)), "B/process")
		})
	}
	if v := f.view(time.Now()); len(v.Processes) < maxProcesses-1 {
		b.Fatalf("%d processes", len(v.Processes))
	}
}
