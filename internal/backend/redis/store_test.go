package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

func limit(requests uint32, unit descriptor.Unit) *descriptor.Limit {
	return &descriptor.Limit{Requests: requests, Window: descriptor.Window{Unit: unit}}
}

func take(key string, l *descriptor.Limit, hits int64) *backend.Request {
	return &backend.Request{
		Takes:    []backend.Take{{Key: []byte(key), Limit: l, Hits: hits}},
		Outcomes: make([]backend.Outcome, 1),
	}
}

// mustTake takes once and returns the outcome.
func mustTake(t testing.TB, s *redis.Store, key string, l *descriptor.Limit, hits int64) backend.Outcome {
	t.Helper()
	r := take(key, l, hits)
	if err := s.Take(t.Context(), time.Time{}, r); err != nil {
		t.Fatal(err)
	}
	return r.Outcomes[0]
}

func TestRedisClockDecides(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})

	before, err := client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	r := take("k", limit(10, descriptor.Year), 1)
	if err := s.Take(t.Context(), time.Unix(1, 0), r); err != nil { // a caller's clock that is wrong by decades
		t.Fatal(err)
	}
	after, err := client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	_, end := limit(10, descriptor.Year).Window.Bounds(before.UnixMicro())
	latest, earliest := end-before.UnixMicro(), end-after.UnixMicro()
	if reset := r.Outcomes[0].ResetAfter.Microseconds(); reset > latest || reset < earliest {
		t.Errorf("the window ends in %dus, want between %d and %d", reset, earliest, latest)
	}
}

func TestKeysExpireWithTheirWindow(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	ctx := t.Context()

	for _, unit := range []descriptor.Unit{descriptor.Minute, descriptor.Hour, descriptor.Day, descriptor.Year} {
		l, key := limit(10, unit), fmt.Sprint("k", unit)
		for hits := range int64(3) { // later hits must not push the end away; 0 hits must not make a key
			mustTake(t, s, key, l, hits)
			if hits == 0 {
				if n := client.Exists(ctx, key).Val(); n != 0 {
					t.Fatalf("%v: a peek made a key", unit)
				}
				continue
			}
			expires, err := client.Do(ctx, "PEXPIRETIME", key).Int64()
			if err != nil {
				t.Fatal(err)
			}
			now, err := client.Time(ctx).Result()
			if err != nil {
				t.Fatal(err)
			}
			if _, end := l.Window.Bounds(now.UnixMicro()); expires*1000 != end {
				t.Errorf("%v, %d hits: expires at %dus, the window ends at %dus", unit, hits, expires*1000, end)
			}
			ttl := client.PTTL(ctx, key).Val()
			if ttl <= 0 || ttl > l.Window.Length() {
				t.Errorf("%v: lives another %v", unit, ttl)
			}
		}
		if encoding := client.ObjectEncoding(ctx, key).Val(); encoding != "int" {
			t.Errorf("%v: kept as %s, not as an integer", unit, encoding)
		}
	}

	// What nobody uses any more is not kept.
	mustTake(t, s, "gone", limit(10, descriptor.Hour), 3)
	mustTake(t, s, "gone", limit(10, descriptor.Hour), -5)
	if n := client.Exists(ctx, "gone").Val(); n != 0 {
		t.Error("a counter that was refunded entirely is kept")
	}
}

func TestRefusedAndPeekedWriteNothing(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	l := limit(2, descriptor.Year)
	mustTake(t, s, "k", l, 2)

	changes := func() string {
		t.Helper()
		info, err := client.Info(t.Context(), "persistence").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(info, "rdb_changes_since_last_save:")
		n, _, _ := strings.Cut(rest, "\r\n")
		return n
	}
	before := changes()
	for _, hits := range []int64{0, 1, 3} {
		mustTake(t, s, "k", l, hits)
	}
	r := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
		{Key: []byte("other"), Limit: l, Hits: 1},
		{Key: []byte("k"), Limit: l, Hits: 1, Member: 1},
	}}
	if err := s.Take(t.Context(), time.Time{}, r); err != nil {
		t.Fatal(err)
	}
	if after := changes(); after != before || before == "" {
		t.Errorf("%q writes became %q", before, after)
	}
	mustTake(t, s, "k", l, -1)
	if changes() == before {
		t.Error("a refund writes, but was not seen: this test sees nothing")
	}
}

func TestForgottenScript(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	for n := range int64(5) {
		if o := mustTake(t, s, "k", limit(10, descriptor.Year), 1); o.Before != n {
			t.Fatalf("call %d: %+v", n, o)
		}
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}

	// Under load: flushes come between any two calls, and no hit is lost or counted twice.
	const workers, each = 16, 50
	var done atomic.Bool
	var flushing, taking sync.WaitGroup
	flushing.Go(func() {
		for !done.Load() {
			client.ScriptFlush(t.Context())
		}
	})
	for range workers {
		taking.Go(func() {
			for range each {
				if err := s.Take(t.Context(), time.Time{}, take("busy", limit(10_000, descriptor.Year), 1)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	taking.Wait()
	done.Store(true)
	flushing.Wait()
	if o := mustTake(t, s, "busy", limit(10_000, descriptor.Year), 0); o.Used != workers*each {
		t.Errorf("%d in use, want %d", o.Used, workers*each)
	}
}

// TestStrangersValues has somebody else write under our keys.
func TestStrangersValues(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	ctx, l := t.Context(), limit(3, descriptor.Year)
	now, err := client.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	window := now.UnixMicro() / l.Window.Length().Microseconds()
	ahead := (window+3)%4096<<40 + 2

	values := map[string]any{
		"a word": "hello", "empty": "", "a float": "1.5", "an exponent": "5e1", "negative": "-7", "huge": "9007199254740993",
		"infinite": "inf", "not a number": "nan", "hexadecimal": "0x7f", "zero": "0", "small": "5", "binary": "\x00\xff\r\n",
		"a window ahead that never ends": ahead,
		"this window as a float":         fmt.Sprintf("%d.0", window%4096<<40+1),
	}
	plant := func(key, what string) {
		t.Helper()
		var err error
		switch what {
		case "a list":
			err = client.RPush(ctx, key, "a").Err()
		case "a hash":
			err = client.HSet(ctx, key, "a", "b").Err()
		default:
			err = client.Set(ctx, key, values[what], 0).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	whats := []string{"a list", "a hash"}
	for what := range values {
		whats = append(whats, what)
	}

	for _, what := range whats {
		t.Run(what, func(t *testing.T) {
			found := int64(0)
			if what == "this window as a float" {
				found = 1 // it says what it means
			}
			alone, grouped := "alone:"+what, "grouped:"+what
			plant(alone, what)
			plant(grouped, what)
			for n := range int64(4) {
				want := min(found+n, 3)
				if o := mustTake(t, s, alone, l, 1); o.Before != want || o.Allowed != (want < 3) {
					t.Errorf("alone, take %d: %+v", n, o)
				}
				r := &backend.Request{Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
					{Key: []byte(grouped), Limit: l, Hits: 1},
					{Key: []byte("another:" + what), Limit: limit(100, descriptor.Year), Hits: 1, Member: 1},
				}}
				if err := s.Take(ctx, time.Time{}, r); err != nil {
					t.Fatal(err)
				}
				if o := r.Outcomes[0]; o.Before != want || o.Allowed != (want < 3) {
					t.Errorf("grouped, take %d: %+v", n, o)
				}
				if o := r.Outcomes[1]; o.Before != n {
					t.Errorf("its neighbour, take %d: %+v", n, o)
				}
			}
			if ttl := client.PTTL(ctx, alone).Val(); ttl <= 0 && what != "this window as a float" {
				t.Errorf("the key that replaced it lives for %v", ttl)
			}
		})
	}
}

// TestWindowsAhead pins where the encoding of windows stops to believe in a clock that went back.
func TestWindowsAhead(t *testing.T) {
	s := redis.New(redis.Options{Client: dial(t, redistest.Start(t)), Timeout: patience, CallerClock: true})
	l := limit(10, descriptor.Second)
	start := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		windows int64 // the clock's step
		before  int64 // what a peek finds
		reset   time.Duration
	}{
		{0, 4, time.Second},
		{-1, 4, 2 * time.Second},
		{-255, 4, 256 * time.Second},
		{-256, 0, time.Second},
		{1, 0, time.Second},
		{3600, 0, time.Second},
		{3840, 0, time.Second},
		{86400, 0, time.Second},
	} {
		for _, neighbours := range []int{0, 1} {
			key := fmt.Sprintf("%d|%d", c.windows, neighbours)
			for i, at := range []time.Time{start, start.Add(time.Duration(c.windows) * time.Second)} {
				r := take(key, l, 4-4*int64(i))
				for n := range neighbours {
					r.Takes = append(r.Takes, backend.Take{Key: []byte("n"), Limit: l, Member: n + 1})
					r.Outcomes = append(r.Outcomes, backend.Outcome{})
				}
				if err := s.Take(t.Context(), at, r); err != nil {
					t.Fatal(err)
				}
				if o := r.Outcomes[0]; i == 1 && (o.Before != c.before || o.ResetAfter != c.reset) {
					t.Errorf("%d windows on, %d neighbours: %+v", c.windows, neighbours, o)
				}
			}
		}
	}
}

func TestUnsupportedLimits(t *testing.T) {
	client, err := redis.Dial(redis.DialOptions{URL: "127.0.0.1:1"}) // never reached
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s := redis.New(redis.Options{Client: client})
	for want, l := range map[string]*descriptor.Limit{
		"sliding_log": {Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Day}},
		"first hit":   {FirstHit: true, Window: descriptor.Window{Unit: descriptor.Day}},
		"calendar":    {Window: descriptor.Window{Unit: descriptor.Day, Location: time.UTC}},
		"window":      {},
	} {
		r := take("k", l, 1)
		err := s.Take(t.Context(), time.Time{}, r)
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, backend.ErrUnavailable) || !r.Outcomes[0].Failed {
			t.Errorf("%s: %v, %+v", want, err, r.Outcomes[0])
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	l := limit(10, descriptor.Year)
	mustTake(t, s, "old", l, 1)
	set := func(bytes string) {
		t.Helper()
		if err := client.ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("1")
	for _, key := range []string{"old", "new"} {
		r := take(key, l, 1)
		if err := s.Take(t.Context(), time.Time{}, r); !errors.Is(err, backend.ErrUnavailable) || !r.Outcomes[0].Failed {
			t.Errorf("%s: %v, %+v", key, err, r.Outcomes[0])
		}
	}
	set("0")
	if o := mustTake(t, s, "old", l, 1); o.Before != 1 {
		t.Errorf("%+v", o)
	}
}

func TestServerGone(t *testing.T) {
	server := redistest.Start(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	l := limit(10, descriptor.Year)
	mustTake(t, s, "k", l, 1)

	server.Kill(t)
	for range 5 { // a connection that broke, then none
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		began := time.Now()
		r := take("k", l, 1)
		err := s.Take(ctx, time.Time{}, r)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v, the deadline is 200ms", took)
		}
		if !errors.Is(err, backend.ErrUnavailable) || !r.Outcomes[0].Failed {
			t.Errorf("%v, %+v", err, r.Outcomes[0])
		}
		cancel()
	}
	if err := s.Ping(t.Context()); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("ping: %v", err)
	}

	server.Restart(t)
	recovered(t, s)
}

// recovered waits until the store answers again.
func recovered(t *testing.T, s *redis.Store) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r := take("recovered", limit(1000, descriptor.Year), 1)
		err := s.Take(t.Context(), time.Time{}, r)
		if err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no answer since Redis is back: %v", err)
		}
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestServerHangs(t *testing.T) {
	server := redistest.Start(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: 100 * time.Millisecond})
	patient := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	l := limit(1000, descriptor.Year)
	mustTake(t, patient, "k", l, 1)
	// A connection of the impatient one is made before the server hangs, so that the calls below are sent.
	recovered(t, s)

	server.Pause(t)
	const calls = 3
	for i := range calls {
		ctx := t.Context()
		cancel := func() {}
		if i == 0 {
			ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
		}
		began := time.Now()
		r := take("k", l, 1)
		err := s.Take(ctx, time.Time{}, r)
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v, the timeout is 100ms", took)
		}
		if !errors.Is(err, backend.ErrUnavailable) || !r.Outcomes[0].Failed {
			t.Errorf("%v, %+v", err, r.Outcomes[0])
		}
		// Only the caller's own deadline is the caller's.
		if got, want := errors.Is(err, context.DeadlineExceeded), i == 0; got != want {
			t.Errorf("call %d: context.DeadlineExceeded %v, want %v: %v", i, got, want, err)
		}
		cancel()
	}
	server.Continue(t)
	recovered(t, s)
	// What was sent may count once, and no more: nothing was sent again.
	if o := mustTake(t, patient, "k", l, 0); o.Used > 1+calls {
		t.Errorf("%d in use after %d calls", o.Used, 1+calls)
	}
}

func TestCallerGone(t *testing.T) {
	s := redis.New(redis.Options{Client: dial(t, redistest.Start(t)), Timeout: patience})
	l := limit(10, descriptor.Year)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := s.Take(cancelled, time.Time{}, take("k", l, 1)); !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("cancelled: %v", err)
	}
	if err := s.Take(late, time.Time{}, take("k", l, 1)); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("late: %v", err)
	}
	if o := mustTake(t, s, "k", l, 0); o.Before != 0 {
		t.Errorf("calls whose caller was gone counted: %+v", o)
	}
}

// TestManyClients has several clients, as processes would have, share one counter by Redis' clock.
func TestManyClients(t *testing.T) {
	server := redistest.Start(t)
	const clients, workers, each, limited = 4, 16, 40, 1000
	l := limit(limited, descriptor.Year)
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range clients {
		s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
		for range workers {
			all.Go(func() {
				for range each {
					r := take("k", l, 1)
					if err := s.Take(t.Context(), time.Time{}, r); err != nil {
						t.Error(err)
						return
					}
					if r.Outcomes[0].Allowed {
						admitted.Add(1)
					}
				}
			})
		}
	}
	all.Wait()
	if admitted.Load() != limited {
		t.Errorf("%d admitted of %d, the limit is %d", admitted.Load(), clients*workers*each, limited)
	}
}

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
						if err := s.Take(context.Background(), time.Time{}, r); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
