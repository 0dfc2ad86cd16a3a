package client_test

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/limits"
)

// BenchmarkDecide is a decision of a service on the same machine, by callers that ask one request after the other.
func BenchmarkDecide(b *testing.B) {
	p := service(b)
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			c := dial(b, p.GRPC, client.Options{OnFailure: client.ReturnError})
			var all sync.WaitGroup
			b.ReportAllocs()
			for i := range callers {
				all.Go(func() {
					r := limits.New("api", "unlimited", fmt.Sprint(i))
					for range b.N/callers + 1 {
						if _, err := c.Decide(b.Context(), r); err != nil {
							b.Error(err)
						}
					}
				})
			}
			all.Wait()
			s := c.Stats()
			b.ReportMetric(float64(s.Requests)/float64(s.Calls), "requests/call")
		})
	}
}

// BenchmarkNoAnswer shows how much later than their deadline of 20 ms calls end while the service hangs: 99 of 100 end within this.
func BenchmarkNoAnswer(b *testing.B) {
	p := service(b)
	c := dial(b, p.GRPC, client.Options{Timeout: 20 * time.Millisecond})
	p.Signal(b, syscall.SIGSTOP)
	defer p.Signal(b, syscall.SIGCONT)
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			var mu sync.Mutex
			var late []time.Duration
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for range b.N/callers + 1 {
						start := time.Now()
						_, _ = c.Decide(b.Context(), limits.New("api", "customer", "a"))
						took := time.Since(start)
						mu.Lock()
						late = append(late, took-20*time.Millisecond)
						mu.Unlock()
					}
				})
			}
			all.Wait()
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "us-late-p99")
			b.ReportMetric(float64(late[len(late)-1].Microseconds()), "us-late-max")
		})
	}
}
