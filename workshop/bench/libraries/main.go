// Command libraries compares package ratelimit with other libraries that limit rates in a Go program: what a decision costs in
// memory and with Redis, and how exact each is when many goroutines ask at once. It starts its own Redis, takes short rounds of all
// libraries in turn, and prints medians as markdown tables.
//
// docs/contributing/libraries.md explains the figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// bench is the command line, and the Redis that is measured.
type bench struct {
	address  string
	keys     string
	rounds   int
	duration time.Duration
	repeats  int
	pool     int
	only     string
	parts    string

	redis *goredis.Client
}

// allParts are what can be measured.
var allParts = map[string]func(b *bench, ctx context.Context, out io.Writer, keys []int) error{
	"memory":  (*bench).inMemory,
	"redis":   (*bench).onRedis,
	"exact":   (*bench).exactness,
	"promise": (*bench).promises,
	"spans":   (*bench).spans,
	"room":    (*bench).crowded,
}

func main() {
	var b bench
	flag.StringVar(&b.address, "redis", "", "host:port of a Redis, which is emptied; without it one is started")
	flag.StringVar(&b.keys, "keys", "1,100000", "numbers of keys")
	flag.IntVar(&b.rounds, "rounds", 25, "how often each library is measured; the report has the median")
	flag.DurationVar(&b.duration, "duration", 200*time.Millisecond, "how long a round takes")
	flag.IntVar(&b.repeats, "repeats", 20, "how often exactness is tried; spans a quarter of that")
	flag.IntVar(&b.pool, "pool", 20, "connections to Redis of each library")
	flag.StringVar(&b.only, "only", "", "measure only libraries whose name contains this")
	flag.StringVar(&b.parts, "parts", "memory,redis,exact,promise,spans,room", "what to measure, in this order")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "libraries:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, out io.Writer) (err error) {
	if b.rounds < 1 || b.duration <= 0 || b.repeats < 1 || b.pool < 1 {
		return errors.New("-rounds, -duration, -repeats and -pool must be positive")
	}
	var keys []int
	for text := range strings.SplitSeq(b.keys, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-keys has %q: use numbers from 1", text)
		}
		keys = append(keys, n)
	}
	parts := strings.Split(b.parts, ",")
	for _, p := range parts {
		if allParts[p] == nil {
			return fmt.Errorf("-parts has %q: use %s", p, strings.Join(slices.Sorted(maps.Keys(allParts)), ", "))
		}
	}
	if needsRedis := slices.ContainsFunc(parts, func(p string) bool { return p != "memory" && p != "room" }); needsRedis && b.address == "" {
		address, end, err := startRedis(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		b.address = address
	}
	if b.address != "" {
		b.redis = newClient(b.address)
		defer func() { err = errors.Join(err, b.redis.Close()) }()
	}
	b.versions(ctx, out)

	for _, name := range parts {
		if err := allParts[name](b, ctx, out, keys); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) inMemory(ctx context.Context, out io.Writer, keys []int) error {
	for _, n := range keys {
		for _, goroutines := range slices.Compact([]int{1, runtime.GOMAXPROCS(0)}) {
			s := shape{keys: n, goroutines: goroutines}
			all, err := b.measure(ctx, b.chosen(inMemory), s)
			if err != nil || len(all) == 0 {
				return err
			}
			b.head(out, "In memory", s)
			if err := reportMemory(out, all, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) onRedis(ctx context.Context, out io.Writer, keys []int) error {
	for _, s := range redisShapes(keys) {
		all, err := b.measure(ctx, b.chosen(onRedis), s)
		if err != nil || len(all) == 0 {
			return err
		}
		b.head(out, "Redis", s)
		if err := reportRedis(out, all); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) exactness(ctx context.Context, out io.Writer, _ []int) error {
	for _, where := range stores {
		all, err := b.exact(ctx, b.chosen(where.libraries), where.redis)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s, one key that may have %d requests an hour: %d goroutines with %d requests each, %d runs.\n\n",
			where.name, exactLimit, exactBy, exactAttempts, b.repeats)
		if err := reportExact(out, all); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) promises(ctx context.Context, out io.Writer, _ []int) error {
	for _, where := range stores {
		all, err := b.sustain(ctx, b.chosen(where.libraries), where.redis)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s, one key that may have %d requests a second, asked for without pause for %v: %d goroutines, %d runs.\n\n",
			where.name, spanLimit, sustained, exactBy, b.repeats)
		if err := reportPromises(out, all); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) spans(ctx context.Context, out io.Writer, _ []int) error {
	for _, where := range stores {
		all, err := b.span(ctx, b.chosen(append(slices.Clone(where.libraries), shaped...)), where.redis)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s, admitted in any span of one second, of one key that may have %d requests a second: %d goroutines, %d runs.\n\n",
			where.name, spanLimit, exactBy, b.spanRuns())
		if err := reportSpans(out, all); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) crowded(ctx context.Context, out io.Writer, _ []int) error {
	all, err := b.room(ctx, b.chosen(inMemory))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nIn memory, %d keys in turn with %d requests each, of which %d an hour are allowed. Stores with a bound have %d places.\n\n",
		roomKeys, roomPasses, roomLimit, roomPlaces)
	return reportRoom(out, all)
}

// stores are where libraries count.
var stores = []struct {
	name      string
	libraries []library
	redis     bool
}{{"In memory", inMemory, false}, {"Redis", onRedis, true}}

// redisShapes are the loads on Redis: many goroutines, and at last one.
func redisShapes(keys []int) (all []shape) {
	for _, n := range keys {
		all = append(all, shape{keys: n, goroutines: 64, redis: true})
	}
	return append(all, shape{keys: keys[len(keys)-1], goroutines: 1, redis: true})
}

func (b *bench) chosen(all []library) (chosen []library) {
	for _, l := range all {
		if strings.Contains(l.name, b.only) {
			chosen = append(chosen, l)
		}
	}
	return chosen
}

func (b *bench) head(out io.Writer, where string, s shape) {
	fmt.Fprintf(out, "\n%s, keys: %d, goroutines: %d. Medians of %d interleaved rounds of %v", where, s.keys, s.goroutines, b.rounds, b.duration)
	if s.redis {
		fmt.Fprintf(out, "; %d connections for each library", b.pool)
	}
	fmt.Fprintf(out, ".\n\n")
}

// versions prints what is measured, and on what.
func (b *bench) versions(ctx context.Context, out io.Writer) {
	fmt.Fprintf(out, "%s, GOMAXPROCS %d", runtime.Version(), runtime.GOMAXPROCS(0))
	if b.redis != nil {
		fmt.Fprintf(out, ", Redis %s", version(ctx, b.redis))
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	for _, d := range info.Deps {
		for _, name := range []string{"redis_rate", "throttled", "ulule/limiter", "x/time", "uber.org/ratelimit", "redis/go-redis"} {
			if strings.Contains(d.Path, name) {
				fmt.Fprintf(out, ", %s %s", d.Path, d.Version)
			}
		}
	}
	fmt.Fprintln(out)
}
