package redissource_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// BenchmarkMillion writes 1,000,000 overrides, reads them as a replica does at startup, from Redis and from its copy,
// and reports the time and memory.
func BenchmarkMillion(b *testing.B) {
	const n = override.MaxOverrides
	r := redistest.Start(b)
	client, err := redisconn.Dial(redisconn.Options{URL: r.Addr})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	file := filepath.Join(b.TempDir(), "copy.yaml")
	source := func() *redissource.Source {
		return redissource.New(redissource.Options{Client: client, Copy: file, Log: slog.New(slog.DiscardHandler)})
	}
	start := time.Now()
	for from := 0; from < n; from += override.MaxEdits {
		edits := make([]override.Edit, override.MaxEdits)
		for k := range edits {
			edits[k].Identity = override.Identity{Domain: "api", Rule: "api.tenant.endpoint", Entries: []descriptor.Entry{
				{Key: "tenant", Value: fmt.Sprintf("customer-%08d", from+k)}, {Key: "endpoint", Value: "/v1/messages"},
			}}
			edits[k].Numbers = override.Numbers{Kind: override.Replace, Requests: uint64(from + k), ExpiresAt: 1 << 32}
			edits[k].Reason = "a larger contract"
		}
		if _, err := source().Write(b.Context(), "ann", edits); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(time.Since(start).Seconds(), "s/write")
	used, err := r.Client(b).InfoMap(b.Context(), "memory").Result()
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("Redis uses %s", used["Memory"]["used_memory_human"])

	measured := func(what string, enough int) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		peak := uint64(0)
		ctx, cancel := context.WithCancel(b.Context())
		loaded, ended := make(chan *override.Set, 10), make(chan struct{})
		start := time.Now()
		go func() {
			defer close(ended)
			_ = source().Run(ctx, func(s *override.Set) { loaded <- s })
		}()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		var set *override.Set
		for got := 0; got < enough; {
			select {
			case set = <-loaded:
				got++
			case <-tick.C:
				runtime.ReadMemStats(&after)
				peak = max(peak, after.HeapAlloc-min(before.HeapAlloc, after.HeapAlloc))
			}
		}
		b.ReportMetric(time.Since(start).Seconds(), "s/"+what)
		b.ReportMetric(float64(peak>>20), "MiB-peak/"+what)
		start = time.Now()
		cancel()
		<-ended
		b.ReportMetric(time.Since(start).Seconds(), "s-stop/"+what)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64((after.HeapAlloc-before.HeapAlloc)>>20), "MiB/"+what)
		if set.Len() != n {
			b.Fatalf("%d overrides", set.Len())
		}
		runtime.KeepAlive(set)
	}
	measured("redis", 1)
	if info, err := os.Stat(file); err == nil {
		b.Logf("the copy has %d MiB", info.Size()>>20)
	}
	r.Kill(b)
	measured("copy", 1)
}
