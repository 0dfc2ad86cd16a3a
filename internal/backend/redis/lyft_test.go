package redis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// reference counts as envoyproxy/ratelimit does: its keys, INCRBY, and EXPIRE with every hit. It does not use our code.
type reference struct {
	client goredis.UniversalClient
	jitter int64 // in seconds
}

// hit adds hits to d_k_<value> and reports whether they are within the limit.
func (r *reference) hit(ctx context.Context, value string, unit time.Duration, limit, hits int64) (bool, error) {
	seconds := int64(unit / time.Second)
	key := fmt.Sprintf("d_k_%s_%d", value, time.Now().Unix()/seconds*seconds)
	pipe := r.client.Pipeline()
	count := pipe.IncrBy(ctx, key, hits)
	pipe.Expire(ctx, key, time.Duration(seconds+r.jitter)*time.Second)
	if _, err := pipe.Exec(ctx); err != nil {
		return false, err
	}
	return count.Val() <= limit, nil
}

// lyftTake is one hit on d_k_<value>. It counts even if it is denied, as in envoyproxy/ratelimit.
func lyftTake(value string, l *descriptor.Limit, hits int64) *backend.Request {
	key := descriptor.KeyBuilder{Format: descriptor.KeysLyft}.AppendKey(nil, "d", []descriptor.Entry{{Key: "k", Value: value}}, nil, l)
	r := take(string(key), l, hits)
	r.Takes[0].CountDenied = true
	return r
}

// Both services count under one limit at the same time. Together they allow exactly the limit, and leave the counter as
// envoyproxy/ratelimit alone would.
func TestCountsWithTheReference(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true, LyftJitter: time.Minute})
	theirs := &reference{client: dial(t, server), jitter: 30}
	const requests, each, goroutines = 500, 50, 16
	l := limit(requests, descriptor.Year)
	var admitted [2]atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range each {
				if ok, err := theirs.hit(t.Context(), "v", 365*24*time.Hour, requests, 1); err != nil {
					t.Error(err)
				} else if ok {
					admitted[0].Add(1)
				}
			}
		})
		wg.Go(func() {
			for range each {
				r := lyftTake("v", l, 1)
				if err := backend.Await(t.Context(), store, time.Now(), r); err != nil {
					t.Error(err)
				} else if r.Outcomes[0].Allowed {
					admitted[1].Add(1)
				}
			}
		})
	}
	wg.Wait()
	a, b := admitted[0].Load(), admitted[1].Load()
	if a+b != requests || a == 0 || b == 0 {
		t.Errorf("the reference admitted %d and we %d, the limit is %d", a, b, requests)
	}
	admin := server.Client(t)
	keys := admin.Keys(t.Context(), "*").Val()
	if len(keys) != 1 {
		t.Fatalf("the keys are %q, want one", keys)
	}
	if got := admin.Get(t.Context(), keys[0]).Val(); got != strconv.Itoa(2*each*goroutines) {
		t.Errorf("%s holds %q after %d hits", keys[0], got, 2*each*goroutines)
	}
	if e := admin.ObjectEncoding(t.Context(), keys[0]).Val(); e != "int" {
		t.Errorf("%s is encoded as %q, want int", keys[0], e)
	}

	// Used includes the hits of both services.
	peek := lyftTake("v", l, 0)
	if err := backend.Await(t.Context(), store, time.Now(), peek); err != nil || peek.Outcomes[0].Used != 2*each*goroutines {
		t.Errorf("%+v, %v", peek.Outcomes[0], err)
	}
}

// A reset clears the shared counter of the current window.
func TestResetOfLyftKeys(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true})
	l := limit(5, descriptor.Year)
	r := lyftTake("v", l, 3)
	if err := backend.Await(t.Context(), store, time.Now(), r); err != nil {
		t.Fatal(err)
	}
	if err := store.Reset(t.Context(), []backend.Counter{{Key: r.Takes[0].Key, Limit: l}}); err != nil {
		t.Fatal(err)
	}
	if keys := server.Client(t).Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("after a reset Redis holds %q", keys)
	}
}

// Over many windows of a second, with hits of several sizes, the keys hold the hits that both services allowed.
func TestCountsWithTheReferenceOverWindows(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true, LyftJitter: time.Hour})
	theirs := &reference{client: dial(t, server), jitter: 60}
	const requests = 40
	l := limit(requests, descriptor.Second)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	until := time.Now().Add(2500 * time.Millisecond)
	for range 4 {
		wg.Go(func() {
			for time.Now().Before(until) {
				ok, err := theirs.hit(t.Context(), "v", time.Second, requests, 1)
				if err != nil {
					t.Error(err)
					return
				}
				if ok {
					admitted.Add(1)
				}
				r := lyftTake("v", l, 1)
				if err := backend.Await(t.Context(), store, time.Now(), r); err != nil {
					t.Error(err)
					return
				}
				if r.Outcomes[0].Allowed {
					admitted.Add(1)
				}
				if left := r.Outcomes[0].ResetAfter; left <= 0 || left > time.Second {
					t.Errorf("the window ends in %v", left)
				}
			}
		})
	}
	wg.Wait()
	admin := server.Client(t)
	want, keys := int64(0), admin.Keys(t.Context(), "d_k_v_*").Val()
	for _, key := range keys {
		n, err := admin.Get(t.Context(), key).Int64()
		if err != nil {
			t.Fatal(err)
		}
		want += min(n, requests)
	}
	if len(keys) < 3 || admitted.Load() != want {
		t.Errorf("%d admitted in %d windows, want %d by their keys", admitted.Load(), len(keys), want)
	}
}

// A key lives for a window's length and part of the jitter, whichever service created it, and never less than until its
// window ends.
func TestLyftKeysExpire(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true, LyftJitter: 100 * time.Second})
	admin := server.Client(t)
	l := limit(10, descriptor.Year)
	ttl := func(value string) time.Duration {
		t.Helper()
		keys := admin.Keys(t.Context(), "d_k_"+value+"_*").Val()
		if len(keys) != 1 {
			t.Fatalf("keys %q", keys)
		}
		return admin.PTTL(t.Context(), keys[0]).Val()
	}
	const year = 365 * 24 * time.Hour
	seen := map[time.Duration]bool{}
	for i := range 20 {
		value := fmt.Sprint("new", i)
		if err := backend.Await(t.Context(), store, time.Now(), lyftTake(value, l, 1)); err != nil {
			t.Fatal(err)
		}
		d := ttl(value)
		if d < year-time.Minute || d > year+100*time.Second {
			t.Errorf("a new key lives %v", d)
		}
		seen[d.Round(time.Second)] = true
	}
	if len(seen) < 5 {
		t.Errorf("20 keys end at %d times: there is no jitter", len(seen))
	}

	start, _ := l.Window.Bounds(time.Now().UnixMicro())
	for value, life := range map[string]time.Duration{"never": 0, "soon": time.Minute, "theirs": year + time.Hour} {
		key := fmt.Sprintf("d_k_%s_%d", value, start/1e6)
		if err := admin.Set(t.Context(), key, 3, life).Err(); err != nil {
			t.Fatal(err)
		}
		r := lyftTake(value, l, 1)
		if err := backend.Await(t.Context(), store, time.Now(), r); err != nil || r.Outcomes[0].Used != 4 {
			t.Fatalf("%+v, %v", r.Outcomes[0], err)
		}
		d := ttl(value)
		if value == "theirs" && d < year+time.Hour-time.Minute || d < year-time.Minute || d > year+2*time.Hour {
			t.Errorf("%s: it lives %v", value, d)
		}
	}
}

// lyftMost is the largest count of a window under a limit of 32 bits.
const lyftMost = 1<<40 - 1

// A foreign value under a key does not make calls fail, and the next hit that counts repairs it, so that
// envoyproxy/ratelimit can use it again too.
func TestLyftKeysArePoisoned(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true})
	admin := server.Client(t)
	l := limit(10, descriptor.Year)
	start, _ := l.Window.Bounds(time.Now().UnixMicro())
	for name, c := range map[string]struct {
		value  any
		before int64
		after  string
	}{
		"a count":              {"7", 7, "8"},
		"hits near 2^63":       {"9223372036854775807", lyftMost, strconv.Itoa(lyftMost)},
		"just too many":        {strconv.Itoa(lyftMost + 1), lyftMost, strconv.Itoa(lyftMost)},
		"below zero":           {"-5", 0, "1"},
		"far below zero":       {"-9223372036854775808", 0, "1"},
		"no number":            {"abc", 0, "1"},
		"a number and more":    {"12abc", 0, "1"},
		"a fraction":           {"5.5", 0, "1"},
		"zeros in front":       {"007", 7, "8"},
		"more digits than any": {strings.Repeat("9", 400), 0, "1"},
		"nothing":              {"", 0, "1"},
		"another type":         {nil, 0, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			value := strings.ReplaceAll(name, " ", "-")
			key := fmt.Sprintf("d_k_%s_%d", value, start/1e6)
			if c.value == nil {
				admin.RPush(t.Context(), key, "x")
			} else {
				admin.Set(t.Context(), key, c.value, 366*24*time.Hour)
			}
			for _, hits := range []int64{0, 1} {
				r := lyftTake(value, l, hits)
				if err := backend.Await(t.Context(), store, time.Now(), r); err != nil || r.Outcomes[0].Before != c.before {
					t.Fatalf("%d hits: %+v, %v", hits, r.Outcomes[0], err)
				}
			}
			if got := admin.Get(t.Context(), key).Val(); got != c.after {
				t.Errorf("it holds %q, want %q", got, c.after)
			}
			if err := admin.IncrBy(t.Context(), key, 1).Err(); err != nil {
				t.Errorf("the reference could not count on: %v", err)
			}
			if left := admin.PTTL(t.Context(), key).Val(); left <= 0 {
				t.Errorf("it lives for ever")
			}
		})
	}
}

// A refund works on a shared counter too, and gives back no more than is used. A denied all-or-nothing request
// leaves nothing; a peek writes nothing.
func TestLyftKeysGiveBack(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true})
	admin := server.Client(t)
	l := limit(10, descriptor.Year)
	start, _ := l.Window.Bounds(time.Now().UnixMicro())
	holds := func(value, want string) {
		t.Helper()
		if got := admin.Get(t.Context(), fmt.Sprintf("d_k_%s_%d", value, start/1e6)).Val(); got != want {
			t.Errorf("%s holds %q, want %q", value, got, want)
		}
	}
	do := func(r *backend.Request) []backend.Outcome {
		t.Helper()
		if err := backend.Await(t.Context(), store, time.Now(), r); err != nil {
			t.Fatal(err)
		}
		return r.Outcomes
	}
	do(lyftTake("a", l, 0))
	holds("a", "")
	do(lyftTake("a", l, 6))
	if o := do(lyftTake("a", l, -2))[0]; !o.Allowed || o.Used != 4 {
		t.Errorf("%+v", o)
	}
	holds("a", "4")
	if o := do(lyftTake("a", l, -5))[0]; !o.Allowed || o.Used != 4 {
		t.Errorf("a refund of more than there is: %+v", o)
	}
	holds("a", "4")
	if o := do(lyftTake("a", l, -4))[0]; !o.Allowed || o.Used != 0 {
		t.Errorf("%+v", o)
	}
	holds("a", "")

	both := func(hits int64) *backend.Request {
		a, b := lyftTake("a", l, hits), lyftTake("b", limit(3, descriptor.Year), hits)
		r := &backend.Request{Together: true, Takes: append(a.Takes, b.Takes...), Outcomes: make([]backend.Outcome, 2)}
		r.Takes[0].CountDenied, r.Takes[1].CountDenied, r.Takes[1].Member = false, false, 1
		return r
	}
	do(both(2))
	if o := do(both(2)); !o[0].Allowed || o[1].Allowed {
		t.Errorf("%+v", o)
	}
	holds("a", "2")
	holds("b", "2")

	stop := both(2) // the denied counter itself counts, as with envoyproxy/ratelimit's STOP flag
	stop.Takes[0].CountDenied, stop.Takes[1].CountDenied = true, true
	do(stop)
	holds("a", "2")
	holds("b", "4")
}

// A reset clears the counter of the current window, by Redis' clock.
func TestLyftKeysAreReset(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true, LyftJitter: time.Minute})
	var all []backend.Counter
	for _, u := range []descriptor.Unit{descriptor.Second, descriptor.Hour, descriptor.Year} {
		r := lyftTake("v", limit(10, u), 3)
		// the clock of Redis decides, not this time
		if err := backend.Await(t.Context(), store, time.Unix(1, 0), r); err != nil {
			t.Fatal(err)
		}
		all = append(all, backend.Counter{Key: r.Takes[0].Key, Limit: r.Takes[0].Limit})
	}
	all = append(all, backend.Counter{Key: []byte("own"), Limit: limit(10, descriptor.Year)})
	mustTake(t, store, "own", all[3].Limit, 3)
	mustTake(t, store, "other", all[3].Limit, 3)
	if err := store.Reset(t.Context(), all[1:]); err != nil {
		t.Fatal(err)
	}
	for _, key := range server.Client(t).Keys(t.Context(), "*").Val() {
		second, _ := strconv.Atoi(strings.TrimPrefix(key, "d_k_v_"))
		if key != "other" && (second == 0 || second%3600 == 0) {
			t.Errorf("%q is still there", key)
		}
	}
	if err := store.Reset(t.Context(), all[:1]); err != nil {
		t.Fatal(err)
	}
}

// Different descriptors may have the same key of envoyproxy/ratelimit. With its keys we count the same way.
func TestLyftKeysAreAmbiguous(t *testing.T) {
	store, _ := openStore(t, redis.Options{LyftKeys: true, CallerClock: true})
	midnight := time.Date(2026, 11, 21, 0, 30, 0, 0, time.UTC)
	hour, day := limit(10, descriptor.Hour), limit(10, descriptor.Day)
	used := func(at time.Time, l *descriptor.Limit, value string) int64 {
		t.Helper()
		r := lyftTake(value, l, 1)
		if err := backend.Await(t.Context(), store, at, r); err != nil {
			t.Fatal(err)
		}
		return r.Outcomes[0].Used
	}
	for i, l := range []*descriptor.Limit{hour, day, hour} {
		if n := used(midnight, l, "v"); n != int64(i+1) {
			t.Errorf("in the first hour of a day, hit %d is the %d", i+1, n)
		}
	}
	if n := used(midnight.Add(time.Hour), hour, "v"); n != 1 {
		t.Errorf("in the second hour, the hourly limit is at %d", n)
	}
	if n := used(midnight.Add(time.Hour), day, "v"); n != 4 {
		t.Errorf("in the second hour, the daily limit is at %d", n)
	}

	one := descriptor.KeyBuilder{Format: descriptor.KeysLyft}.AppendKey(nil, "d", []descriptor.Entry{{Key: "x", Value: "1"}, {Key: "y", Value: "2"}}, nil, day)
	other := descriptor.KeyBuilder{Format: descriptor.KeysLyft}.AppendKey(nil, "d", []descriptor.Entry{{Key: "x", Value: "1_y_2"}}, nil, day)
	if string(one) != string(other) {
		t.Errorf("%q and %q", one, other)
	}
}

// Any sequence of takes has the outcomes of the model. Other counters in the same requests keep our keys.
func TestLyftKeysModel(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true, CallerClock: true})
	units := []descriptor.Unit{descriptor.Second, descriptor.Minute, descriptor.Hour}
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		model := backendtest.NewModel()
		now := time.Date(2026, 11, 21, 12, 59, 58, 0, time.UTC).UnixMicro()
		for range rapid.IntRange(1, 20).Draw(rt, "requests") {
			now += rapid.SampledFrom([]int64{0, 1, 300_000, 1_000_000, 60_000_000}).Draw(rt, "later")
			r := &backend.Request{Together: rapid.Bool().Draw(rt, "together")}
			for m := range rapid.IntRange(1, 4).Draw(rt, "takes") {
				u := rapid.IntRange(0, len(units)-1).Draw(rt, "unit")
				l := limit(uint64(rapid.IntRange(0, 6).Draw(rt, "limit")), units[u])
				tk := lyftTake(fmt.Sprint(run, "-", u), l, rapid.Int64Range(-3, 4).Draw(rt, "hits")).Takes[0]
				if rapid.IntRange(0, 3).Draw(rt, "own") == 0 {
					tk.Key = fmt.Appendf(nil, "own%d-%d", run, u)
				}
				tk.Member, tk.Vote = m, backend.Vote(rapid.IntRange(0, 2).Draw(rt, "vote"))
				tk.CountDenied = rapid.Bool().Draw(rt, "count_denied")
				r.Takes = append(r.Takes, tk)
			}
			r.Outcomes = make([]backend.Outcome, len(r.Takes))
			want := *r
			want.Outcomes = make([]backend.Outcome, len(r.Takes))
			if err := backend.Await(rt.Context(), model, time.UnixMicro(now), &want); err != nil {
				rt.Fatal(err)
			}
			if err := backend.Await(rt.Context(), store, time.UnixMicro(now), r); err != nil {
				rt.Fatal(err)
			}
			for i := range r.Takes {
				if r.Outcomes[i] != want.Outcomes[i] {
					rt.Fatalf("take %d of %q at %v\ngot  %+v\nwant %+v", i, r.Takes[i].Key, time.UnixMicro(now).UTC(), r.Outcomes[i], want.Outcomes[i])
				}
			}
		}
	})
	for _, key := range server.Client(t).Keys(t.Context(), "*").Val() {
		if strings.ContainsAny(key, "{}") {
			t.Fatalf("%q has no start of a window", key)
		}
	}
}

// Redis' clock decides the window of these keys too.
func TestRedisClockDecidesLyftKeys(t *testing.T) {
	store, server := openStore(t, redis.Options{LyftKeys: true})
	l := limit(10, descriptor.Year)
	for i, at := range []time.Time{time.Unix(1, 0), time.Now().AddDate(40, 0, 0), time.Now()} {
		r := lyftTake("v", l, 1)
		if err := backend.Await(t.Context(), store, at, r); err != nil || r.Outcomes[0].Used != int64(i+1) {
			t.Errorf("a caller at %v: %+v, %v", at, r.Outcomes[0], err)
		}
	}
	start, _ := l.Window.Bounds(time.Now().UnixMicro())
	if got := server.Client(t).Keys(t.Context(), "*").Val(); len(got) != 1 || got[0] != fmt.Sprintf("d_k_v_%d", start/1e6) {
		t.Errorf("the keys are %q", got)
	}
}

// Requests share a call because their keys have one slot at the time given by the caller. If that time is wrong, they
// are sent again one by one.
func TestLyftKeysLeaveTheirSlot(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.Setup{})
	wrong := time.Unix(1_000_000_000, 0)
	l := limit(1_000_000, descriptor.Minute)
	start, _ := l.Window.Bounds(wrong.UnixMicro())
	var values []string
	for i := 0; len(values) < 20; i++ {
		if redis.SlotOf(fmt.Sprintf("d_k_v%d_%d", i, start/1e6)) == 7 {
			values = append(values, fmt.Sprint("v", i))
		}
	}
	client := dialCluster(t, cluster)
	for range 10 {
		store := redis.New(redis.Options{Client: client, Timeout: 10 * time.Second, LyftKeys: true})
		var wg sync.WaitGroup
		for i := range 4 * len(values) {
			r := lyftTake(values[i%len(values)], l, 1)
			if i < len(values) { // takes of other keys do not correct the clock
				r = take(fmt.Sprint("own", i), l, 1)
			}
			wg.Go(func() {
				if err := backend.Await(t.Context(), store, wrong, r); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// On a cluster a key's slot changes with its window. Requests in flight when a window ends do not fail, and count
// exactly; so do requests over several slots, even if clients choose the slot with braces.
func TestLyftKeysOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.Setup{})
	stores := []*redis.Store{
		redis.New(redis.Options{Client: dialCluster(t, cluster), Timeout: 10 * time.Second, LyftKeys: true, LyftJitter: time.Hour}),
		redis.New(redis.Options{Client: dialCluster(t, cluster), Timeout: 10 * time.Second, LyftKeys: true, LyftJitter: time.Hour}),
	}
	client := dialCluster(t, cluster)
	theirs := &reference{client: client, jitter: 60}
	const requests, values = 30, 5
	l := limit(requests, descriptor.Second)
	var admitted [values]atomic.Int64
	var wg sync.WaitGroup
	until := time.Now().Add(3 * time.Second)
	for g := range 12 {
		wg.Go(func() {
			for i := g; time.Now().Before(until); i++ {
				v := i % values
				value, other := fmt.Sprintf("{tag}%d", v), (v+1)%values
				if v > 1 {
					value = fmt.Sprint("v", v)
				}
				if g < 4 {
					ok, err := theirs.hit(t.Context(), value, time.Second, requests, 1)
					if err != nil {
						t.Errorf("the reference: %v", err)
						return
					}
					if ok {
						admitted[v].Add(1)
					}
					continue
				}
				r := lyftTake(value, l, 1)
				if i%3 == 0 { // the same slot by chance, or another one
					second := lyftTake(fmt.Sprint("free", other, g), limit(1_000_000, descriptor.Second), 1).Takes[0]
					second.Member = 1
					r.Takes, r.Outcomes = append(r.Takes, second), make([]backend.Outcome, 2)
				}
				if err := backend.Await(t.Context(), stores[g%2], time.Now(), r); err != nil {
					t.Errorf("ours: %v", err)
					return
				}
				if r.Outcomes[0].Allowed {
					admitted[v].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for v := range values {
		pattern := fmt.Sprintf("d_k_v%d_*", v)
		if v <= 1 {
			pattern = fmt.Sprintf("d_k_{tag}%d_*", v)
		}
		want := int64(0)
		for _, n := range cluster.Nodes {
			c := n.Client(t)
			for _, key := range c.Keys(t.Context(), pattern).Val() {
				if count, err := c.Get(t.Context(), key).Int64(); err == nil { // otherwise it is a replica's
					want += min(count, requests)
				}
			}
		}
		if got := admitted[v].Load(); got != want || got == 0 {
			t.Errorf("value %d: %d admitted, want %d by the keys", v, got, want)
		}
	}
}
