package client_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/limits"
)

// BenchmarkDecide measures calls of the real service by goroutines that each make one call after the other.
func BenchmarkDecide(b *testing.B) {
	service := start(b)
	for _, callers := range []int{1, 2, 4, 8, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			c, err := client.New(service.GRPC, client.Options{Timeout: time.Second, OnFailure: limits.OnFailureError})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			r := limits.NewRequest("shop", "many", "a")
			if _, err := c.Decide(context.Background(), r); err != nil {
				b.Fatal(err)
			}
			before := c.Stats()
			took := make([]time.Duration, b.N)
			var next atomic.Int64
			var group sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range callers {
				group.Go(func() {
					for {
						i := next.Add(1) - 1
						if i >= int64(b.N) {
							return
						}
						start := time.Now()
						if _, err := c.Decide(context.Background(), r); err != nil {
							b.Error(err)
							return
						}
						took[i] = time.Since(start)
					}
				})
			}
			group.Wait()
			b.StopTimer()
			slices.Sort(took)
			stats := c.Stats()
			b.ReportMetric(float64(took[b.N/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(took[b.N*99/100].Nanoseconds())/1e3, "p99-us")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
			b.ReportMetric(float64(stats.Requests-before.Requests)/float64(stats.RPCs-before.RPCs), "requests/rpc")
		})
	}
}
