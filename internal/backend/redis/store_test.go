package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func limit(requests uint64, unit descriptor.Unit) *descriptor.Limit {
	return &descriptor.Limit{Requests: requests, Window: descriptor.Window{Unit: unit}}
}

func take(key string, l *descriptor.Limit, hits int64) *backend.Request {
	return &backend.Request{
		Takes:    []backend.Take{{Key: []byte(key), Limit: l, Hits: hits}},
		Outcomes: make([]backend.Outcome, 1),
	}
}

// mustTake makes one take and returns the outcome.
func mustTake(t testing.TB, s *redis.Store, key string, l *descriptor.Limit, hits int64) backend.Outcome {
	t.Helper()
	r := take(key, l, hits)
	if err := backend.Await(t.Context(), s, time.Time{}, r); err != nil {
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
	if err := backend.Await(t.Context(), s, time.Unix(1, 0), r); err != nil { // a time that is wrong by decades
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
		for hits := range int64(3) { // later hits must not delay the expiry; 0 hits must not create a key
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
}

// Every algorithm's counter lives until nothing of it is in use any more, rounded up to a millisecond.
func TestTimeToLive(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	ctx := t.Context()
	byRedis := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	byCaller := redis.New(redis.Options{Client: dial(t, server), Timeout: patience, CallerClock: true})
	for name, l := range everyShape(20) {
		t.Run(name, func(t *testing.T) {
			for _, hits := range []int64{0, 3, 0, 1, 5, -2, -7} {
				before := redisTime(t, client)
				o := mustTake(t, byRedis, name, l, hits)
				expires, err := client.Do(ctx, "PEXPIRETIME", name).Int64()
				if err != nil {
					t.Fatal(err)
				}
				after := redisTime(t, client)
				if o.Used == 0 {
					if n := client.Exists(ctx, name).Val(); n != 0 {
						t.Errorf("%d hits: nothing is in use, but there is a key", hits)
					}
					continue
				}
				latest := after.Add(o.ResetAfter + time.Millisecond)
				if l.Algorithm == descriptor.SlidingWindow { // it expires when its last sub-window is over
					latest = after.Add(2 * l.Window.Length())
				}
				if at := time.UnixMilli(expires); at.Before(before.Add(o.ResetAfter)) || at.After(latest) {
					t.Errorf("%d hits, %+v: it expires at %v, want %v to %v", hits, o, at, before.Add(o.ResetAfter), latest)
				}
			}
		})
		t.Run(name+", caller's clock", func(t *testing.T) {
			// With this time, the last expiry is not a whole number of milliseconds.
			model, key, now, began := backendtest.NewModel(), []byte("caller|"+name), time.Unix(2_000_000_000, 123_456_000), time.Now()
			for _, hits := range []int64{3, 0, 1, -2, 5, 6} {
				r := take(string(key), l, hits)
				if err := backend.Await(ctx, model, now, r); err != nil {
					t.Fatal(err)
				}
				state := model.State(key)
				if err := backend.Await(ctx, byCaller, now, r); err != nil {
					t.Fatal(err)
				}
				ttl := client.PTTL(ctx, string(key)).Val()
				want := (time.Duration(backend.Expires(l, &state)-now.UnixMicro())*time.Microsecond + time.Minute + time.Millisecond - 1).Truncate(time.Millisecond)
				if ttl > want || ttl < want-time.Since(began)-2*time.Millisecond {
					t.Errorf("%d hits: it lives another %v, want %v", hits, ttl, want)
				}
			}
		})
	}
}

// everyShape returns limits of every algorithm whose hits return within a day.
func everyShape(n int) map[string]*descriptor.Limit {
	all := backendtest.EveryAlgorithm(n)
	for name, l := range all {
		l.Window.Unit = descriptor.Day
		if err := l.Compile(); err != nil {
			panic(fmt.Sprint(name, ": ", err))
		}
	}
	return all
}

func redisTime(t testing.TB, client *goredis.Client) time.Time {
	t.Helper()
	now, err := client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// Denials and peeks change no key, byte by byte, and no expiry.
func TestDeniedAndPeekedWriteNothing(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	limits := backendtest.EveryAlgorithm(5)
	for name, l := range limits {
		if o := mustTake(t, s, name, l, 5); !o.Allowed {
			t.Fatalf("%s: %+v", name, o)
		}
	}
	look := func() string {
		t.Helper()
		info, err := client.Info(t.Context(), "persistence").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(info, "rdb_changes_since_last_save:")
		writes, _, _ := strings.Cut(rest, "\r\n")
		seen := writes + " writes"
		for _, name := range slices.Sorted(maps.Keys(limits)) {
			expires, err := client.Do(t.Context(), "PEXPIRETIME", name).Int64()
			if err != nil {
				t.Fatal(err)
			}
			seen += fmt.Sprintf("\n%s %q %d", name, client.Dump(t.Context(), name).Val(), expires)
		}
		return seen + fmt.Sprint("\n", client.DBSize(t.Context()).Val(), " keys")
	}

	before := look()
	for name, l := range limits {
		for _, hits := range []int64{0, 1, 5, 6} {
			if o := mustTake(t, s, name, l, hits); o.Allowed != (hits == 0) {
				t.Fatalf("%s, %d hits: %+v", name, hits, o)
			}
		}
		mustTake(t, s, "new "+name, l, 0)
		mustTake(t, s, "new "+name, l, -1)
		mustTake(t, s, "new "+name, l, 6)
	}
	// All limits except one have room.
	for name, l := range limits {
		r := &backend.Request{Together: true}
		for other, l := range limits {
			r.Takes = append(r.Takes, backend.Take{Key: []byte("other " + other), Limit: l, Hits: 1, Member: len(r.Takes)})
		}
		r.Takes = append(r.Takes, backend.Take{Key: []byte(name), Limit: l, Hits: 1, Member: len(r.Takes)})
		r.Outcomes = make([]backend.Outcome, len(r.Takes))
		if err := backend.Await(t.Context(), s, time.Time{}, r); err != nil {
			t.Fatal(err)
		}
		if o := r.Outcomes[len(limits)]; o.Allowed {
			t.Fatalf("%s: %+v", name, o)
		}
	}
	if after := look(); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
	for name, l := range limits {
		mustTake(t, s, name, l, -1)
		if now := look(); now == before {
			t.Errorf("%s: a refund writes, but was not seen: this test sees nothing", name)
		} else {
			before = now
		}
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

	// Scripts are flushed between calls under load, and no hit is lost or counted twice.
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
				if err := backend.Await(t.Context(), s, time.Time{}, take("busy", limit(10_000, descriptor.Year), 1)); err != nil {
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

// A foreign value under a key counts as nothing, unless it is a valid state. The next hit replaces it.
func TestForeignValues(t *testing.T) {
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
		"this window, and a fraction":    fmt.Sprintf("%d.5", window%4096<<40+7),
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
				found = 1 // it is a valid state
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
				if err := backend.Await(ctx, s, time.Time{}, r); err != nil {
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

// A foreign value counts as nothing with every algorithm.
func TestForeignValuesEverywhere(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	values := []string{
		"", "hello", "hello world!", "hello world, hello", "-1", "1.5", "1e15", "inf", "nan", "0x10", " 7", "7 ", ":", "1:", ":1", "1:2:", "1:2:3:4",
		"9007199254740991", "9007199254740993", "9223372036854775807", "9999999999999999999", "1999999999999999999",
		"8999999999999999999", "3000000000000000000", "99999999999999999999999999999999:1", "8888888888888888:1", "9007199254740991:99999999999999999999",
		"8888888888888:3", "8888888888888:3:4", "8888888888888:99999999999:4", "5:::::::::::::::::", "12:4567890123456789",
		strings.Repeat("\xff", 12), strings.Repeat("\xff", 40), strings.Repeat("\x00", 12), strings.Repeat("\x00", 8) + "\xff\xff\xff\xff",
		"\x00\x0f" + strings.Repeat("\xff", 10), strings.Repeat("x", 1<<20), strings.Repeat("\x00", 9), strings.Repeat("1", 4096),
	}
	for name, l := range backendtest.EveryAlgorithm(5) {
		t.Run(name, func(t *testing.T) {
			for i, value := range values {
				alone, grouped := fmt.Sprint("alone", name, i), fmt.Sprint("grouped", name, i)
				for _, key := range []string{alone, grouped} {
					if err := client.Set(t.Context(), key, value, 0).Err(); err != nil {
						t.Fatal(err)
					}
				}
				for n := range int64(6) {
					r := &backend.Request{Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
						{Key: []byte(grouped), Limit: l, Hits: 1},
						{Key: []byte(grouped + "neighbour"), Limit: l, Hits: 1, Member: 1},
					}}
					if err := backend.Await(t.Context(), s, time.Time{}, r); err != nil {
						t.Fatalf("%.50q: %v", value, err)
					}
					for which, o := range map[string]backend.Outcome{"alone": mustTake(t, s, alone, l, 1), "grouped": r.Outcomes[0], "neighbour": r.Outcomes[1]} {
						if o.Before != n && n < 5 || o.Allowed != (n < 5) {
							t.Fatalf("%.50q, %s, take %d: %+v", value, which, n, o)
						}
					}
				}
				if ttl := client.PTTL(t.Context(), alone).Val(); ttl <= 0 {
					t.Errorf("%.50q: the key that replaced it lives for %v", value, ttl)
				}
			}
			// Other types.
			for _, key := range []string{"list" + name, "grouped list" + name} {
				if err := client.RPush(t.Context(), key, "a").Err(); err != nil {
					t.Fatal(err)
				}
			}
			if o := mustTake(t, s, "list"+name, l, 2); !o.Allowed || o.Used != 2 {
				t.Errorf("%+v", o)
			}
			if o := mustTake(t, s, "list"+name, l, 1); o.Before != 2 {
				t.Errorf("%+v", o)
			}
		})
	}
}

// Redis' clock decides the day of a calendar, however wrong the time given by a caller is.
func TestCallersOfOtherDays(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	l := &descriptor.Limit{Requests: 1000, Window: descriptor.Window{Unit: descriptor.Day}}
	for _, name := range []string{"Asia/Kathmandu", "America/St_Johns"} { // their days do not end in the same hour
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		l.Window.Location = zone
		if now := time.Now().UnixMicro(); end(l, now)-now > time.Hour.Microseconds() {
			break
		}
	}
	used := int64(0)
	for _, skew := range []time.Duration{0, -24 * time.Hour, 48 * time.Hour, -50 * 365 * 24 * time.Hour, 1000 * 24 * time.Hour} {
		s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
		for n := range int64(2) { // the first take starts the window of Redis' day
			r := take(fmt.Sprint("of ", skew), l, 1)
			if err := backend.Await(t.Context(), s, time.Now().Add(skew), r); err != nil {
				t.Fatal(err)
			}
			if o := r.Outcomes[0]; o.Before != n {
				t.Errorf("a clock %v ahead, take %d of a new counter: %+v", skew, n, o)
			}
		}
		for range 3 {
			for _, neighbours := range []int{0, 2} {
				before := redisTime(t, client)
				r := take("k", l, 1)
				for n := range neighbours {
					r.Takes = append(r.Takes, backend.Take{Key: fmt.Append(nil, n), Limit: limit(1000, descriptor.Year), Hits: 1, Member: n + 1})
					r.Outcomes = append(r.Outcomes, backend.Outcome{})
				}
				if err := backend.Await(t.Context(), s, before.Add(skew), r); err != nil {
					t.Fatal(err)
				}
				o, latest := r.Outcomes[0], time.Duration(end(l, before.UnixMicro())-before.UnixMicro())*time.Microsecond
				if o.Before != used || !o.Allowed || o.ResetAfter > latest || o.ResetAfter < latest-patience {
					t.Errorf("a clock %v ahead: %+v, want %d before and a reset in %v", skew, o, used, latest)
				}
				used++
			}
		}
	}
}

// end is when the window of a limit ends that contains now, in microseconds.
func end(l *descriptor.Limit, now int64) int64 {
	_, at := l.Window.Bounds(now)
	return at
}

// After its limit was lowered, a log may hold more entries than the reply has room for.
func TestLoweredLog(t *testing.T) {
	s := redis.New(redis.Options{Client: dial(t, redistest.Start(t)), Timeout: patience})
	log := func(n uint64) *descriptor.Limit {
		l := &descriptor.Limit{Requests: n, Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Day}}
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		return l
	}
	if o := mustTake(t, s, "k", log(65536), 65536); !o.Allowed || o.Used != 65536 {
		t.Fatalf("%+v", o)
	}
	for _, n := range []uint64{10, 65535} {
		if o := mustTake(t, s, "k", log(n), 1); o.Allowed || o.Before != 65536 || o.RetryAfter <= 0 {
			t.Errorf("%+v", o)
		}
		r := &backend.Request{Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
			{Key: []byte("k"), Limit: log(n), Hits: 1}, {Key: []byte("other"), Limit: log(3), Hits: 1, Member: 1},
		}}
		if err := backend.Await(t.Context(), s, time.Time{}, r); err != nil || r.Outcomes[0].Before != 65536 || !r.Outcomes[1].Allowed {
			t.Errorf("%v, %+v", err, r.Outcomes)
		}
	}
	// Many logs in one request, each longer than the one before, and a calendar whose window is not known yet.
	r := &backend.Request{}
	for i := range 20 {
		key := fmt.Append(nil, "many", i)
		mustTake(t, s, string(key), log(100), int64(i+10))
		r.Takes = append(r.Takes, backend.Take{Key: key, Limit: log(5), Hits: 1, Member: i})
	}
	calendar := &descriptor.Limit{Requests: 5, Window: descriptor.Window{Unit: descriptor.Year, Location: time.UTC}}
	r.Takes = append(r.Takes, backend.Take{Key: []byte("calendar"), Limit: calendar, Hits: 1, Member: 20})
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	if err := backend.Await(t.Context(), s, time.Unix(1, 0), r); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if o := r.Outcomes[i]; o.Allowed || o.Before != int64(i+10) {
			t.Errorf("log %d: %+v", i, o)
		}
	}
	if o := r.Outcomes[20]; !o.Allowed || o.Used != 1 {
		t.Errorf("%+v", o)
	}

	if o := mustTake(t, s, "k", log(10), -65530); o.Used != 6 {
		t.Errorf("%+v", o)
	}
	if o := mustTake(t, s, "k", log(10), 4); !o.Allowed || o.Used != 10 {
		t.Errorf("%+v", o)
	}
}

// Some servers do not give scripts the time. The time given by the caller decides then.
func TestTimeDenied(t *testing.T) {
	for name, args := range map[string][]string{
		"no such command": {"--rename-command", "TIME", ""},
		"no permission":   {"--user", "default", "on", "nopass", "~*", "+@all", "-time"},
	} {
		for _, ping := range []bool{false, true} {
			for _, takes := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s, ping=%v, takes=%d", name, ping, takes), func(t *testing.T) {
					var log bytes.Buffer
					server := redistest.Start(t, args...)
					s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience, Logger: slog.New(slog.NewTextHandler(&log, nil))})
					if ping {
						if err := s.Ping(t.Context()); err != nil || !s.CallerClock() {
							t.Fatalf("%v, caller's clock %v", err, s.CallerClock())
						}
					}
					for n := range int64(3) {
						r := take("k", limit(10, descriptor.Minute), 1)
						if takes == 2 {
							r.Takes = append(r.Takes, backend.Take{Key: []byte("l"), Limit: limit(10, descriptor.Hour), Hits: 1, Member: 1})
							r.Outcomes = append(r.Outcomes, backend.Outcome{})
						}
						if err := backend.Await(t.Context(), s, time.Unix(1_800_000_030, 0), r); err != nil {
							t.Fatal(err)
						}
						if o := r.Outcomes[0]; o.Before != n || o.ResetAfter != 30*time.Second {
							t.Errorf("take %d: %+v", n, o)
						}
					}
					if err := s.Ping(t.Context()); err != nil {
						t.Error(err)
					}
					if n := strings.Count(log.String(), "level=WARN"); n != 1 {
						t.Errorf("it was logged %d times: %s", n, log.String())
					}
				})
			}
		}
	}
	s := redis.New(redis.Options{Client: dial(t, redistest.Start(t)), Timeout: patience})
	if err := s.Ping(t.Context()); err != nil || s.CallerClock() {
		t.Errorf("%v, caller's clock %v", err, s.CallerClock())
	}
}

// The encoding of windows tolerates a clock that went back by up to 255 windows.
func TestWindowsAhead(t *testing.T) {
	s := redis.New(redis.Options{Client: dial(t, redistest.Start(t)), Timeout: patience, CallerClock: true})
	l := limit(10, descriptor.Second)
	start := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		windows int64 // the clock's step
		before  int64 // number of used hits that a peek reads
		reset   time.Duration
	}{
		{0, 4, time.Second},
		{-1, 4, 2 * time.Second},
		{-2, 4, time.Second},
		{-255, 4, time.Second},
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
				if err := backend.Await(t.Context(), s, at, r); err != nil {
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
	client, err := redisconn.Dial(redisconn.Options{URL: "127.0.0.1:1"}) // no call reaches it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	s := redis.New(redis.Options{Client: client})
	for want, l := range map[string]*descriptor.Limit{
		"not compiled": {Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Day}},
		"window":       {},
	} {
		r := take("k", l, 1)
		err := backend.Await(t.Context(), s, time.Time{}, r)
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
		if err := backend.Await(t.Context(), s, time.Time{}, r); !errors.Is(err, backend.ErrUnavailable) || !r.Outcomes[0].Failed {
			t.Errorf("%s: %v, %+v", key, err, r.Outcomes[0])
		}
	}
	set("0")
	if o := mustTake(t, s, "old", l, 1); o.Before != 1 {
		t.Errorf("%+v", o)
	}
}

// When Redis has no memory left, nothing can be counted, but customers over the limit stay denied: alone, together with
// others in one call, and among several limits.
func TestDenialsNeedNoMemory(t *testing.T) {
	server := redistest.Start(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	l := limit(2, descriptor.Year)
	mustTake(t, s, "reached", l, 2)
	mustTake(t, s, "not yet", l, 1)
	if err := server.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	one := func(key string, hits int64, denied bool) *backend.Request {
		r := take(key, l, hits)
		r.Takes[0].CountDenied = denied
		return r
	}
	both := func(a, b string) *backend.Request {
		r := one(a, 1, false)
		r.Takes = append(r.Takes, one(b, 1, false).Takes...)
		r.Takes[1].Member = 1
		r.Together, r.Outcomes = true, make([]backend.Outcome, 2)
		return r
	}
	for _, c := range []struct {
		what     string
		request  *backend.Request
		answered bool
	}{
		{"over the limit", one("reached", 1, false), true},
		{"over the limit, and counted", one("reached", 1, true), true},
		{"below", one("not yet", 1, true), false},
		{"too much at once", one("not yet", 2, true), true},
		{"new", one("new", 1, true), false},
		{"one of two over the limit", both("reached", "not yet"), true},
		{"both below", both("new", "not yet"), false},
		{"a look", one("reached", 0, false), true},
		{"a refund", one("reached", -1, false), false},
	} {
		err := backend.Await(t.Context(), s, time.Time{}, c.request)
		denied := !c.request.Outcomes[0].Allowed || c.request.Takes[0].Hits == 0
		if answered := err == nil && !c.request.Outcomes[0].Failed && denied; answered != c.answered || !answered && !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%s: %v %+v", c.what, err, c.request.Outcomes)
		}
	}

	// In one call with requests that cannot be counted.
	requests := []*backend.Request{
		one("reached", 1, true), one("new", 1, true), one("reached", 1, false), both("reached", "other"), one("not yet", 1, true), one("not yet", 2, true),
	}
	if err := s.TakeAll(t.Context(), time.Time{}, requests...); !errors.Is(err, backend.ErrUnavailable) {
		t.Error(err)
	}
	// the last one may depend on the failed one before it
	for i, failed := range []bool{false, true, false, false, true, true} {
		if o := requests[i].Outcomes[0]; o.Failed != failed || o.Allowed {
			t.Errorf("request %d: %+v", i, o)
		}
	}
	if n := server.Client(t).Exists(t.Context(), "new", "other").Val(); n != 0 {
		t.Errorf("%d counters were made", n)
	}

	// Requests that share calls behave the same way.
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			key := []string{"reached", fmt.Sprint("new", i)}[i%2]
			for range 20 {
				r := one(key, 1, true)
				if err := backend.Await(t.Context(), s, time.Time{}, r); (err == nil) != (key == "reached") {
					t.Errorf("%s: %v %+v", key, err, r.Outcomes)
				}
			}
		})
	}
	wg.Wait()
}

func TestServerGone(t *testing.T) {
	server := redistest.Start(t)
	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	l := limit(10, descriptor.Year)
	mustTake(t, s, "k", l, 1)

	server.Kill(t)
	for range 5 { // first the connection breaks, then dialling fails
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		began := time.Now()
		r := take("k", l, 1)
		err := backend.Await(ctx, s, time.Time{}, r)
		if took := time.Since(began); took > longest {
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
		err := backend.Await(t.Context(), s, time.Time{}, r)
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
	// The impatient client has a connection before the server hangs, so that the calls below are sent.
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
		err := backend.Await(ctx, s, time.Time{}, r)
		if took := time.Since(began); took > longest { // Redis hangs: without the timeout the call would wait forever
			t.Errorf("it took %v, the timeout is 100ms", took)
		}
		if !errors.Is(err, backend.ErrUnavailable) || !r.Outcomes[0].Failed {
			t.Errorf("%v, %+v", err, r.Outcomes[0])
		}
		// Only the deadline of ctx gives DeadlineExceeded.
		if got, want := errors.Is(err, context.DeadlineExceeded), i == 0; got != want {
			t.Errorf("call %d: context.DeadlineExceeded %v, want %v: %v", i, got, want, err)
		}
		cancel()
	}
	server.Continue(t)
	recovered(t, s)
	// A sent call counts at most once: it was not sent again.
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
	if err := backend.Await(cancelled, s, time.Time{}, take("k", l, 1)); !errors.Is(err, context.Canceled) || errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("cancelled: %v", err)
	}
	if err := backend.Await(late, s, time.Time{}, take("k", l, 1)); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("late: %v", err)
	}
	if o := mustTake(t, s, "k", l, 0); o.Before != 0 {
		t.Errorf("calls whose caller was gone counted: %+v", o)
	}
}

// Several clients, like those of several processes, share one counter by Redis' clock. They allow exactly the limit.
func TestManyClients(t *testing.T) {
	server := redistest.Start(t)
	const clients, workers, each, limited = 4, 16, 20, 640
	var stores [clients]*redis.Store
	for i := range stores {
		stores[i] = redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	}
	for name, l := range backendtest.EveryAlgorithm(limited) {
		t.Run(name, func(t *testing.T) {
			var admitted atomic.Int64
			var all sync.WaitGroup
			for _, s := range stores {
				for range workers {
					all.Go(func() {
						for range each {
							r := take(name, l, 1)
							if err := backend.Await(t.Context(), s, time.Now(), r); err != nil {
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
		})
	}
}
