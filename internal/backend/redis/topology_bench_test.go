package redis_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// BenchmarkColdKeys reports the CPU time of a take of one of 100,000 counters, with 8 batches of 16 requests in flight:
// of this process, and of Redis.
func BenchmarkColdKeys(b *testing.B) {
	server := redistest.Start(b)
	cluster := redistest.StartCluster(b, redistest.Setup{})
	var primaries []*goredis.Client
	for i, n := range cluster.Nodes {
		if i < 3 {
			primaries = append(primaries, n.Client(b))
		} else {
			n.Kill(b) // writes to replicas would cost time, too
		}
	}
	for name, limit := range map[string]string{"fixed window": "1000000000/1h", "sliding window": "1000000000/1h,sliding", "token bucket": "1000000/1s,token,burst=1000000000"} {
		b.Run(name+", one server", func(b *testing.B) { coldKeys(b, dial(b, server), limit, server.Client(b)) })
		b.Run(name+", three nodes", func(b *testing.B) { coldKeys(b, dialCluster(b, cluster), limit, primaries...) })
	}
}

func coldKeys(b *testing.B, client goredis.UniversalClient, limit string, nodes ...*goredis.Client) {
	s := redis.New(redis.Options{Client: client, Timeout: time.Minute})
	b.Cleanup(func() { _ = s.Close() })
	l := backendtest.Limit(limit)
	const callers, each, keys = 8, 16, 100_000
	run := func(n int) {
		var wg sync.WaitGroup
		for caller := range callers {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(caller), uint64(n)))
				var batch backend.Batch
				requests := make([]backend.Request, each)
				for i := range requests {
					requests[i] = backend.Request{Takes: []backend.Take{{Key: []byte("domain|user=01234567"), Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
				}
				answers := make(chan error, each)
				for done := 0; done < n; done += callers * each {
					for i := range requests {
						binary.BigEndian.PutUint32(requests[i].Takes[0].Key[12:], uint32(random.IntN(keys)))
						if _, err := s.Start(context.Background(), time.Now(), &batch, &requests[i], func(err error) { answers <- err }); err != nil {
							b.Error(err)
						}
					}
					batch.Send()
					for range each {
						if err := <-answers; err != nil {
							b.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
	}
	spent := func() (here, there time.Duration) {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		for _, n := range nodes {
			there += mainThread(b, n)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano()), there
	}
	run(2 * keys)
	here, there := spent()
	b.ResetTimer()
	run(b.N)
	b.StopTimer()
	here2, there2 := spent()
	b.ReportMetric(float64((here2-here).Nanoseconds())/1e3/float64(b.N), "here-us/op")
	b.ReportMetric(float64((there2-there).Nanoseconds())/1e3/float64(b.N), "redis-us/op")
	b.ReportMetric(0, "ns/op")
}
