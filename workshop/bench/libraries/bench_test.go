package libraries

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

const (
	day         = 24 * time.Hour
	connections = 20 // connections to Redis for each library
)

// plenty is a limit that no benchmark reaches. With many keys it is so small that a bucket is not full again when its
// key comes next. A store could evict a full bucket, and we would measure other work than usual.
func plenty(keys int) setup {
	if keys == 1 {
		return setup{requests: 4_000_000_000, per: time.Hour}
	}
	return setup{requests: 1000, per: day}
}

func BenchmarkMemory(b *testing.B) {
	compare(b, inMemory, nil, 1, runtime.GOMAXPROCS(0))
}

func BenchmarkRedis(b *testing.B) {
	compare(b, inRedis, redistest.Start(b), 1, 64)
}

// compare measures libraries with one key and with many. Before that, each library has counted one request of every
// key.
func compare(b *testing.B, libraries []library, redis *redistest.Server, goroutines ...int) {
	for _, keys := range []int{1, 100_000} {
		names := make([]string, keys)
		for i := range names {
			names[i] = fmt.Sprintf("customer-%d", i)
		}
		for _, l := range libraries {
			b.Run(fmt.Sprintf("keys=%d/%s", keys, l.name), func(b *testing.B) {
				s := plenty(keys)
				var store *goredis.Client
				if redis != nil {
					s.redis, store = redis.Addr, redis.Client(b)
					must(b, store.FlushDB(background).Err())
				}
				before := heap()
				allow := l.open(b, s)
				spread(min(len(names), 64), func(g int) {
					for i := g; i < len(names); i += 64 {
						if ok, err := allow(names[i]); err != nil || !ok {
							b.Errorf("%s: %v, %v", names[i], ok, err)
						}
					}
				})
				kept := float64(heap()-before) / float64(keys)
				for _, n := range goroutines {
					b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
						measure(b, allow, names, n, store)
						if keys > 1 && redis == nil {
							b.ReportMetric(kept, "B/key")
						}
					})
				}
			})
		}
	}
}

// measure asks from several goroutines. No request is denied; errors are counted.
func measure(b *testing.B, allow decide, names []string, goroutines int, store *goredis.Client) {
	var failed atomic.Int64
	b.ReportAllocs()
	redis, own := redisCPU(b, store), processCPU()
	b.ResetTimer()
	spread(goroutines, func(g int) {
		i := rand.IntN(len(names))
		for range (b.N + g) / goroutines {
			// A step without a common divisor with the number of keys visits all of them, in an order that CPU caches cannot
			// predict.
			i = (i + 7919) % len(names)
			if ok, err := allow(names[i]); err != nil {
				failed.Add(1)
			} else if !ok {
				b.Error("a request is denied")
				return
			}
		}
	})
	b.StopTimer()
	each := func(d time.Duration) float64 { return float64(d) / float64(b.N) }
	b.ReportMetric(each(processCPU()-own), "cpu-ns/op")
	if store != nil {
		b.ReportMetric(each(redisCPU(b, store)-redis), "redis-cpu-ns/op")
		b.ReportMetric(100*float64(failed.Load())/float64(b.N), "%errors")
	}
}

// spread runs f on several goroutines, and waits for them.
func spread(goroutines int, f func(g int)) {
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() { f(g) })
	}
	all.Wait()
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // objects with a finalizer are freed by the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it fails for arguments that do not exist
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func redisCPU(b *testing.B, store *goredis.Client) (total time.Duration) {
	if store == nil {
		return 0
	}
	info, err := store.InfoMap(background, "cpu").Result()
	must(b, err)
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info["CPU"][name], 64)
		must(b, err)
		total += time.Duration(seconds * float64(time.Second))
	}
	return total
}

const limit = 1000 // a day

// storm asks for a key that may have 1,000 a day, 200 times on each of 64 goroutines. A storm in which a day ends is
// repeated.
func storm(allow decide) (admitted, failed int64) {
	var passed, errors atomic.Int64
	for began := time.Now().UTC(); ; began = time.Now().UTC() {
		passed.Store(0)
		errors.Store(0)
		spread(64, func(int) {
			for range 200 {
				if ok, err := allow("storm of " + began.String()); err != nil {
					errors.Add(1)
				} else if ok {
					passed.Add(1)
				}
			}
		})
		if time.Now().UTC().YearDay() == began.YearDay() {
			return passed.Load(), errors.Load()
		}
	}
}

// Every library limits in the way that we use it: 90% to 200% of the limit passes. ratelimitd never exceeds its limit.
func TestStorm(t *testing.T) {
	for where, libraries := range map[string][]library{"": inMemory, redistest.Start(t).Addr: inRedis} {
		for _, l := range libraries {
			admitted, failed := storm(l.open(t, setup{requests: limit, per: day, redis: where}))
			ours := strings.HasPrefix(l.name, "ratelimitd")
			if admitted < limit*9/10 || admitted > 2*limit || ours && (admitted > limit || failed > 0) {
				t.Errorf("%s %s: of a limit of %d, %d were admitted, with %d errors", l.name, where, limit, admitted, failed)
			}
		}
	}
}

func BenchmarkStorm(b *testing.B) {
	for where, libraries := range map[string][]library{"memory": inMemory, "redis": inRedis} {
		for _, l := range libraries {
			b.Run(where+"/"+l.name, func(b *testing.B) {
				s := setup{requests: limit, per: day}
				if where == "redis" {
					s.redis = redistest.Start(b).Addr
				}
				allow := l.open(b, s)
				least, most, errors := int64(limit), int64(0), int64(0)
				for b.Loop() {
					admitted, failed := storm(allow)
					least, most, errors = min(least, admitted), max(most, admitted), errors+failed
				}
				b.ReportMetric(float64(least), "least")
				b.ReportMetric(float64(most), "most")
				b.ReportMetric(float64(errors)/float64(b.N), "errors/op")
			})
		}
	}
}

// 100,000 keys ask in turn, 20 times each, with 10 a day and 65,536 places, the number in throttled's documentation.
func BenchmarkPlaces(b *testing.B) {
	const keys, limit = 100_000, 10
	for _, l := range inMemory {
		b.Run(l.name, func(b *testing.B) {
			above, denied := 0, 0
			for b.Loop() {
				allow := l.open(b, setup{requests: limit, per: day, places: 65_536})
				admitted := make([]int, keys)
				for range 2 * limit {
					for i := range admitted {
						ok, err := allow(strconv.Itoa(i))
						must(b, err)
						if ok {
							admitted[i]++
						}
					}
				}
				above, denied = 0, 0
				for _, n := range admitted {
					above, denied = above+max(n-limit, 0), denied+max(limit-n, 0)
				}
			}
			b.ReportMetric(float64(above), "admitted-above")
			b.ReportMetric(float64(denied), "denied-within")
		})
	}
}
