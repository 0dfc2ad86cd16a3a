package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// BenchmarkThousand measures the write of a replica's record, and a list of a thousand replicas.
func BenchmarkThousand(b *testing.B) {
	const processes = 1000
	r := redistest.Start(b)
	f := New(Options{Client: redisconntest.Connect(b, redisconn.Options{URL: r.Addr}), Names: names, Self: func() Replica { return named("ratelimitd-7c9f8d6b5-x2x4q") }})
	client := r.Client(b)
	p := named("ratelimitd-7c9f8d6b5-x2x4q")
	p.Overrides = Overrides{Source: OverridesInRedis, Version: 1234, Earlier: 1234, Count: 100_000}
	p.Redis, p.Caches = []Redis{{Name: "redis", Connections: 12}}, []Cache{{"leases", 100}, {"denial cache", 1000}}
	text := p.encode()
	pipe, now := client.Pipeline(), time.Now().UnixMilli()
	var list strings.Builder
	for i := range processes {
		fmt.Fprintf(&list, "%016x %d\n", i, now)
		pipe.Set(b.Context(), f.saidKey(fmt.Sprintf("%016x", i)), text, 0)
	}
	pipe.Set(b.Context(), names, list.String(), 0)
	if _, err := pipe.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Run("say", func(b *testing.B) {
		for b.Loop() {
			if err := f.say(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(text)), "B/process")
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if err := f.read(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	if v := f.view(time.Now()); len(v.Replicas) < processes {
		b.Fatalf("%d processes", len(v.Replicas))
	}
}
