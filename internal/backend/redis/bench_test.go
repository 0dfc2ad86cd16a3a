package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// footprints are typical counters with the most memory that Redis may need for one of them under a key of 24 bytes: its
// MEMORY USAGE, and its share of used_memory with 25,000 counters. A 64-bit integer takes 72 and 133 bytes; longer
// values take more.
var footprints = []struct {
	name  string
	limit string
	hits  int64
	usage int64
	used  float64
}{
	{"fixed window", "100/1m", 50, 72, 133},
	{"fixed window, first hit", "100/1m,first_hit", 50, 72, 133},
	{"fixed window, calendar", "100/1d,in=Asia/Seoul", 50, 72, 133},
	{"sliding window", "100/1m,sliding", 50, 72, 133},
	{"sliding window, more than 10 million", "100000000/1m,sliding", 50_000_000, 104, 165},
	{"sliding window, precision 3", "100/1h,sliding,precision=3", 20, 104, 165},
	{"sliding window, precision 12", "100/1h,sliding,precision=12", 5, 136, 209},
	{"sliding log, 10 entries", "10/1h,log", 10, 136, 209},
	{"sliding log, 100 entries", "100/1h,log", 100, 504, 593},
	{"sliding log, 1000 entries", "1000/1h,log", 1000, 4104 + 72, 4224},
	{"token bucket", "100/1m,token", 50, 72, 133},
	{"token bucket, a rate that does not divide", "70/1m,token", 50, 104, 165},
	{"token bucket, interval", "100/1m,token,interval", 50, 72, 133},
	{"leaky bucket", "100/1m,leaky,burst=99", 50, 72, 133},
}

// Counters are no larger than footprints says, with a tolerance of a tenth for the allocator and the server.
func TestBytesPerCounter(t *testing.T) {
	racetest.Sequential(t)
	server := redistest.Start(t)
	for _, f := range footprints {
		t.Run(f.name, func(t *testing.T) {
			usage, used := bytesPerCounter(t, server, f.limit, f.hits, 6_250)
			if usage > f.usage*11/10 || used > f.used*1.1+10 { // the server's own memory weighs more with few keys
				t.Errorf("MEMORY USAGE %d, used_memory %.0f per key; want at most %d and %.0f and a tenth", usage, used, f.usage, f.used)
			}
		})
	}
}

// bytesPerCounter fills a server with counters and returns MEMORY USAGE of one of them, and the used memory per
// counter.
func bytesPerCounter(t testing.TB, server *redistest.Server, text string, hits int64, keys int) (usage int64, used float64) {
	t.Helper()
	client := server.Client(t)
	// no lanes, because the memory of a connecting lane would count
	plain := redisconntest.Connect(t, redisconn.Options{URL: server.Addr})
	s := redis.New(redis.Options{Client: plain, Timeout: time.Minute, CallerClock: true})
	l := backendtest.Limit(text)
	fill := func(from, to int, at time.Time) {
		t.Helper()
		r := &backend.Request{}
		for i := from; i < to; i++ {
			r.Takes = append(r.Takes, backend.Take{Key: fmt.Appendf(nil, "domain|user=%012d", i)[:24], Limit: l, Hits: hits, Member: i})
		}
		r.Outcomes = make([]backend.Outcome, len(r.Takes))
		if err := backend.Await(t.Context(), s, at, r); err != nil {
			t.Fatal(err)
		}
		for _, o := range r.Outcomes {
			if !o.Allowed {
				t.Fatalf("%+v", o)
			}
		}
	}
	memory := func() int64 {
		t.Helper()
		if err := client.Do(t.Context(), "MEMORY", "PURGE").Err(); err != nil {
			t.Fatal(err)
		}
		return info(t, client, "memory", "used_memory")
	}
	flush := func() {
		t.Helper()
		if err := client.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	const batch = 250
	now := time.Now()
	fill(0, batch, now) // creates the script, the connection and its buffers
	flush()
	before := memory()
	for i := 0; i < keys; i += batch {
		fill(i, i+batch, now)
		for sub := range l.Precision { // one hit in every sub-window that counts
			fill(i, i+batch, now.Add(time.Duration(sub+1)*l.Window.Length()/time.Duration(l.Precision)))
		}
	}
	used = float64(memory()-before) / float64(keys)
	usage, err := client.MemoryUsage(t.Context(), "domain|user=000000000000", 0).Result()
	if err != nil {
		t.Fatal(err)
	}
	flush()
	return usage, used
}

func info(t testing.TB, client *goredis.Client, section, field string) int64 {
	t.Helper()
	text, err := client.Info(t.Context(), section).Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut("\r\n"+text, "\r\n"+field+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.ParseInt(value, 10, 64)
	if !ok || err != nil {
		t.Fatalf("INFO %s has no number %s: %v", section, field, err)
	}
	return n
}

// BenchmarkBytes reports the memory of a counter in Redis.
func BenchmarkBytes(b *testing.B) {
	server := redistest.Start(b)
	for _, f := range footprints {
		b.Run(f.name, func(b *testing.B) {
			keys := 25_000
			if f.hits == 1000 {
				keys = 6_250
			}
			var usage int64
			var used float64
			for b.Loop() {
				usage, used = bytesPerCounter(b, server, f.limit, f.hits, keys)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(usage), "usage-B/key")
			b.ReportMetric(used, "used-B/key")
		})
	}
}

// BenchmarkCPU reports the CPU time of a decision in Redis. cpu is the time of its main thread, with 16 commands in a
// pipeline; script is the part within the commands. envoyproxy/ratelimit's INCRBY and EXPIRE come first.
func BenchmarkCPU(b *testing.B) {
	server := redistest.Start(b)
	client := server.Client(b)
	const keys, pipelined = 10_000, 16
	measure := func(b *testing.B, add func(ctx context.Context, p goredis.Pipeliner, i int) error) {
		ctx := context.Background()
		i := 0
		run := func(n int) {
			for done := 0; done < n; {
				p := client.Pipeline()
				for k := 0; k < pipelined && done < n; k++ {
					if err := add(ctx, p, i); err != nil {
						b.Fatal(err)
					}
					i, done = i+1, done+1
				}
				if _, err := p.Exec(ctx); err != nil {
					b.Fatal(err)
				}
			}
		}
		run(keys) // every key once: counters in use are measured
		if err := client.ConfigResetStat(ctx).Err(); err != nil {
			b.Fatal(err)
		}
		before := mainThread(b, client)
		b.ResetTimer()
		run(b.N)
		b.StopTimer()
		spent := mainThread(b, client) - before
		b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "cpu-us/op")
		b.ReportMetric(commandTime(b, client)/float64(b.N), "script-us/op")
		b.ReportMetric(0, "ns/op")
		if err := client.FlushAll(ctx).Err(); err != nil {
			b.Fatal(err)
		}
	}
	name := func(i int) []byte { return fmt.Appendf(nil, "domain|user=%012d", i%keys) }

	b.Run("INCRBY and EXPIRE", func(b *testing.B) {
		measure(b, func(ctx context.Context, p goredis.Pipeliner, i int) error {
			key := string(name(i))
			p.IncrBy(ctx, key, 1)
			p.Expire(ctx, key, time.Hour)
			return nil
		})
	})
	s := redis.New(redis.Options{Client: client, Timeout: time.Minute})
	take := func(request func(i int) *backend.Request) func(context.Context, goredis.Pipeliner, int) error {
		return func(ctx context.Context, p goredis.Pipeliner, i int) error {
			args, err := s.Command(ctx, time.Now(), request(i))
			if err == nil {
				p.Do(ctx, args...)
			}
			return err
		}
	}
	for _, c := range []struct {
		name           string
		admits, denies string
		filled         int64 // hits that a counter holds from the start
	}{
		{"fixed window", "1000000000/1h", "1/1h", 1},
		{"fixed window, first hit", "1000000000/1h,first_hit", "1/1h,first_hit", 1},
		{"fixed window, calendar", "1000000000/1d,in=Asia/Seoul", "1/1d,in=Asia/Seoul", 1},
		{"sliding window", "1000000000/1h,sliding", "1/1h,sliding", 1},
		{"sliding window, precision 12", "1000000000/1h,sliding,precision=12", "1/1h,sliding,precision=12", 1},
		{"sliding log, 100 entries", "60000/1h,log", "100/1h,log", 100},
		{"sliding log, 1000 entries", "60000/1h,log", "1000/1h,log", 1000},
		{"token bucket", "1000000/1s,token,burst=1000000000", "1/1h,token", 1},
		{"token bucket, a rate that does not divide", "999999/1s,token,burst=1000000", "7/1h,token,burst=1", 1},
		{"token bucket, interval", "1000/1h,token,interval,burst=1000000", "1/1h,token,interval", 1},
		{"leaky bucket", "1000000/1s,leaky,burst=1000000000", "1/1h,leaky,burst=0", 1},
	} {
		for verdict, text := range map[string]string{"admitted": c.admits, "denied": c.denies} {
			b.Run(c.name+", "+verdict, func(b *testing.B) {
				l := backendtest.Limit(text)
				measure(b, take(func(i int) *backend.Request {
					hits := int64(1)
					if i < keys {
						hits = c.filled
					}
					return &backend.Request{Takes: []backend.Take{{Key: name(i), Limit: l, Hits: hits}}}
				}))
			})
		}
	}
	for n, mix := range map[string][]string{
		"8 fixed windows":        {"1000000000/1h", "1000000000/1h", "1000000000/1h", "1000000000/1h", "1000000000/1h", "1000000000/1h", "1000000000/1h", "1000000000/1h"},
		"bucket, fixed, sliding": {"1000000/1s,token,burst=1000000000", "1000000000/1h", "1000000000/1h,sliding"},
	} {
		b.Run("one request of "+n, func(b *testing.B) {
			var limits []*descriptor.Limit
			for _, text := range mix {
				limits = append(limits, backendtest.Limit(text))
			}
			measure(b, take(func(i int) *backend.Request {
				r := &backend.Request{Together: true}
				for k, l := range limits {
					r.Takes = append(r.Takes, backend.Take{Key: append(name(i), byte('a'+k)), Limit: l, Hits: 1, Member: k})
				}
				return r
			}))
		})
	}
	const together = 32
	for n, text := range map[string]string{
		"fixed window": "1000000000/1h", "sliding window": "1000000000/1h,sliding", "token bucket": "1000000/1s,token,burst=1000000000",
	} {
		b.Run(fmt.Sprintf("%d requests in one call, %s", together, n), func(b *testing.B) { // figures are of the call
			l := backendtest.Limit(text)
			measure(b, take(func(i int) *backend.Request {
				r := &backend.Request{}
				for k := range together {
					r.Takes = append(r.Takes, backend.Take{Key: name(i*together + k), Limit: l, Hits: 1, Member: k})
				}
				return r
			}))
		})
	}
}

// mainThread returns the CPU time of the thread that runs commands.
func mainThread(b *testing.B, client *goredis.Client) time.Duration {
	b.Helper()
	text, err := client.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys_main_thread" || name == "used_cpu_user_main_thread" {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += n
		}
	}
	return time.Duration(sum * float64(time.Second))
}

// commandTime returns the time of the commands that clients sent, in microseconds.
func commandTime(b *testing.B, client *goredis.Client) float64 {
	b.Helper()
	text, err := client.Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	spent := map[string]float64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		_, rest, _ = strings.Cut(rest, "usec=")
		value, _, _ := strings.Cut(rest, ",")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			spent[name] = n
		}
	}
	if n, ok := spent["evalsha"]; ok { // includes the commands that the script runs
		return n + spent["eval"]
	}
	return spent["incrby"] + spent["expire"]
}

// BenchmarkTake measures the cost of a call in this process.
func BenchmarkTake(b *testing.B) {
	server := redistest.Start(b)
	s := redis.New(redis.Options{Client: dial(b, server), Timeout: patience})
	for _, takes := range []int{1, 3, 32} {
		for _, together := range []bool{false, true} {
			b.Run(fmt.Sprintf("takes=%d/together=%v", takes, together), func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					l := limit(1_000_000_000, descriptor.Year)
					r := &backend.Request{Together: together, Outcomes: make([]backend.Outcome, takes)}
					for i := range takes {
						r.Takes = append(r.Takes, backend.Take{Key: fmt.Appendf(nil, "domain|user=%d|f3600", i), Limit: l, Hits: 1, Member: i})
					}
					for pb.Next() {
						if err := backend.Await(context.Background(), s, time.Time{}, r); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
