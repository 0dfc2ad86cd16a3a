package redis_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

const invalidationsKey = "prefix:{invalidations}"

// listener records the counters that Invalidations report.
type listener struct {
	*redis.Invalidations

	metrics *prometheus.Registry
	mu      sync.Mutex
	heard   []string
}

// listen joins the replicas that share a Redis, and waits until it receives.
func listen(t *testing.T, where redisconn.Options) *listener {
	t.Helper()
	l := &listener{metrics: prometheus.NewRegistry()}
	l.Invalidations = redis.NewInvalidations(redis.InvalidationsOptions{
		Client: connect(t, where), Key: invalidationsKey, Metrics: prom.With(l.metrics),
		Forget: func(key []byte, cleared bool) { l.hear(fmt.Sprint(string(key), " ", cleared)) },
		ForgetAll: func(cleared bool) {
			if cleared {
				l.hear("all")
			} else {
				l.hear("all denials")
			}
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	l.await(t, "all")
	return l
}

func (l *listener) hear(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = append(l.heard, what)
}

// await waits until exactly these messages were received, in this order, and clears them.
func (l *listener) await(t *testing.T, want ...string) {
	t.Helper()
	redistest.Eventually(t, fmt.Sprintf("%.200q", want), func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !slices.Equal(l.heard, want) {
			return fmt.Errorf("heard %.200q", l.heard)
		}
		l.heard = nil
		return nil
	})
}

// silent checks that nothing was heard.
func (l *listener) silent(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.heard) > 0 {
		t.Errorf("heard %.200q, want nothing", l.heard)
	}
}

func (l *listener) clear(t *testing.T, keys ...string) {
	t.Helper()
	if err := l.Cleared(t.Context(), named(keys...)); err != nil {
		t.Fatal(err)
	}
}

func named(keys ...string) (all []backend.Counter) {
	for _, k := range keys {
		all = append(all, backend.Counter{Key: []byte(k)})
	}
	return all
}

// count returns how often an event is counted.
func (l *listener) count(t *testing.T, event string) float64 {
	t.Helper()
	families, err := l.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "ratelimitd_invalidations_total" && m.GetLabel()[0].GetValue() == event {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no event %s", event)
	return 0
}

// Each replica receives the resets and refunds of the others, in order and once, and skips its own messages.
func TestProcessesShareInvalidations(t *testing.T) {
	t.Parallel()
	rights := []string{"--user", "default", "on", "nopass", "~*", "-@all", "+evalsha", "+eval", "+xadd", "+xread", "+xrevrange", "+ping"}
	for name, start := range map[string]func(*testing.T) redisconn.Options{
		"single": func(t *testing.T) redisconn.Options { return redisconn.Options{URL: redistest.Start(t).Addr} },
		// The rights that docs/reference/redis-keys.md lists.
		"few rights": func(t *testing.T) redisconn.Options {
			return redisconn.Options{URL: redistest.Start(t, rights...).Addr}
		},
		"cluster": func(t *testing.T) redisconn.Options {
			return redisconn.Options{Type: "CLUSTER", URL: strings.Join(redistest.StartCluster(t, redistest.Setup{}).Addrs(), ",")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			where := start(t)
			a, b, c := listen(t, where), listen(t, where), listen(t, where)
			a.clear(t, "k", "", "\xff\n")
			b.clear(t, "other")
			c.await(t, "k true", " true", "\xff\n true", "other true")
			a.await(t, "other true")
			b.await(t, "k true", " true", "\xff\n true")

			a.Refunded([]byte("r"))
			a.Refunded([]byte("s"))
			c.await(t, "r false", "s false")
			b.await(t, "r false", "s false")
			a.silent(t)
			// A message is counted when Redis has answered, which may be after the others have heard it.
			redistest.Eventually(t, "one message for the reset, and one or two for the refunds", func(context.Context) error {
				if sent := a.count(t, "sent"); sent != 2 && sent != 3 {
					return fmt.Errorf("%v messages", sent)
				}
				return nil
			})
		})
	}
}

// A replica that may have missed a message forgets everything: one whose connection was killed, one that was too slow,
// and each after Redis has lost its data.
func TestMissedInvalidations(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	where := redisconn.Options{URL: r.Addr}
	client := r.Client(t)
	do := func(args ...any) any {
		t.Helper()
		answer, err := client.Do(t.Context(), args...).Result()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	a, b := listen(t, where), listen(t, where)
	a.clear(t, "before")
	b.await(t, "before true")

	// The connection that waits for messages is killed, and a message comes before the next one is made.
	began := time.Now()
	killed := client.TxPipeline()
	killed.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	killed.XAdd(t.Context(), &goredis.XAddArgs{Stream: invalidationsKey, Values: []any{"n", "2", "by", "x", "resets", "\x04gone"}})
	if _, err := killed.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.await(t, "all")
	a.await(t, "all")
	t.Logf("forgot everything %s after the connections were killed", time.Since(began))
	a.clear(t, "after")
	b.await(t, "after true")

	// A message was removed before it was read: the next one has a number too high.
	do("XADD", invalidationsKey, "*", "n", "9", "by", "x", "resets", "\x04late")
	a.await(t, "all", "late true")
	b.await(t, "all", "late true")

	// Redis loses its data, and its messages start again, so soon that the first one has the ID of the last one.
	last, err := client.XRevRangeN(t.Context(), invalidationsKey, "+", "-", 1).Result()
	if err != nil || len(last) != 1 {
		t.Fatal(last, err)
	}
	restart := func(id string, keys string) {
		t.Helper()
		_, err := client.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
			p.FlushAll(t.Context())
			return p.XAdd(t.Context(), &goredis.XAddArgs{Stream: invalidationsKey, ID: id, Values: []any{"n", "1", "by", "x", "resets", keys}}).Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	restart(last[0].ID, "\x04same")
	a.await(t, "all")
	b.await(t, "all")

	// It loses its data, and the first new message has a higher ID.
	restart("9999999999999-1", "\x03new")
	a.await(t, "all", "new true")
	b.await(t, "all", "new true")

	// It loses its data, and its clock goes back: new messages have lower IDs.
	do("FLUSHALL")
	do("XADD", invalidationsKey, "1-1", "n", "5", "by", "x", "resets", "\x04past")
	a.await(t, "all")
	b.await(t, "all")

	// A message that is not one of ours makes every replica forget everything.
	do("XADD", invalidationsKey, "*", "n", "6", "resets", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	a.await(t, "all")
	b.await(t, "all")
	if n := b.count(t, "forgot_all"); n < 7 {
		t.Errorf("forgot everything %v times, want at least 7", n)
	}
}

// While Redis is unreachable messages wait. If too many wait, the others forget all denials, but keep their permits.
func TestInvalidationsWait(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	where := redisconn.Options{URL: r.Addr}
	a := listen(t, where)
	r.Stop(t)
	for n := range 10_000 {
		a.Refunded(fmt.Appendf(nil, "counter number %d", n))
	}
	within, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := a.Cleared(within, named("k")); err == nil {
		t.Error("a reset that nobody else learned of was no error")
	}
	if n := a.count(t, "dropped"); n == 0 {
		t.Error("nothing was dropped: the test shows nothing")
	}
	r.Restart(t)
	client := r.Client(t)
	redistest.Eventually(t, "messages", func(ctx context.Context) error {
		all, err := client.XRange(ctx, invalidationsKey, "-", "+").Result()
		if err != nil {
			return err
		}
		refunds, reset := false, false
		for _, m := range all {
			refunds = refunds || m.Values["all"] == "refunds"
			reset = reset || m.Values["resets"] == "\x01k"
		}
		if !refunds || !reset {
			return fmt.Errorf("%d messages: neither all refunds nor the reset", len(all))
		}
		return nil
	})
	b := listen(t, where)
	if err := client.XAdd(t.Context(), &goredis.XAddArgs{Stream: invalidationsKey, Values: []any{"n", fmt.Sprint(client.XLen(t.Context(), invalidationsKey).Val() + 1), "by", "x", "all", "refunds"}}).Err(); err != nil {
		t.Fatal(err)
	}
	b.await(t, "all denials")
}

// The stream is bounded, regardless of the messages.
func TestInvalidationsAreBounded(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	a := listen(t, redisconn.Options{URL: r.Addr})
	for range 2000 {
		a.clear(t, "k")
	}
	if n := r.Client(t).XLen(t.Context(), invalidationsKey).Val(); n < 256 || n > 512 {
		t.Errorf("%d messages are kept, want 256 and some more", n)
	}
}

// A user may have no rights for streams. Resets and refunds still work in this replica.
func TestInvalidationsWithoutRights(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t, "--user", "default", "on", "nopass", "~*", "-@all", "+evalsha", "+eval", "+get", "+mget", "+set", "+incrby", "+del", "+pttl", "+time", "+ping")
	v := redis.NewInvalidations(redis.InvalidationsOptions{
		Client: connect(t, redisconn.Options{URL: r.Addr}), Key: invalidationsKey,
		Forget: func([]byte, bool) {}, ForgetAll: func(bool) {},
	})
	store := redis.New(redis.Options{Client: connect(t, redisconn.Options{URL: r.Addr}), Invalidations: v})
	if err := store.Reset(t.Context(), named("k")); err != nil {
		t.Error(err)
	}
}
