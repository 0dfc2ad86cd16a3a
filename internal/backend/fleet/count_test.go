package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// counting is a Fleet that only counts replicas, as package ratelimit uses one.
func counting(t *testing.T, where redisconn.Options, o Options) *Fleet {
	t.Helper()
	store := redis.New(redis.Options{Client: redisconntest.Connect(t, where)})
	t.Cleanup(func() { _ = store.Close() })
	o.Log = slog.New(slog.DiscardHandler)
	o.Beat = func(ctx context.Context, name string, lives time.Duration, leaves bool) (int, error) {
		return store.Heartbeat(ctx, names, name, lives, leaves)
	}
	return New(o)
}

// beats sends a heartbeat and checks the number of replicas that is used.
func (f *Fleet) beats(t *testing.T, want int) {
	t.Helper()
	if err := f.beat(t.Context()); f.last != want || err != nil {
		t.Errorf("%d processes, %v; want %d", f.last, err, want)
	}
}

// Replicas count each other, on every kind of server. A replica that leaves is removed from the list immediately, but a
// smaller number is used only after it was seen for a while.
func TestReplicasCountEachOther(t *testing.T) {
	t.Parallel()
	single := func(args ...string) func(*testing.T) redisconn.Options {
		return func(t *testing.T) redisconn.Options { return redisconn.Options{URL: redistest.Start(t, args...).Addr} }
	}
	for name, start := range map[string]func(*testing.T) redisconn.Options{
		"single": single(),
		// The rights that docs/reference/redis-keys.md lists.
		"few rights":          single("--user", "default", "on", "nopass", "~*", "-@all", "+evalsha", "+eval", "+get", "+mget", "+set", "+incrby", "+del", "+pttl", "+time", "+ping"),
		"no time for scripts": single("--rename-command", "TIME", ""),
		"cluster": func(t *testing.T) redisconn.Options {
			return redisconn.Options{Type: "CLUSTER", URL: strings.Join(redistest.StartCluster(t, redistest.Setup{}).Addrs(), ",")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			where := start(t)
			enter := func() *Fleet { return counting(t, where, Options{Lives: time.Hour}) }
			a, b, c := enter(), enter(), enter()
			a.beats(t, 1)
			b.beats(t, 2)
			c.beats(t, 3)
			a.beats(t, 3)
			b.leave(t.Context())
			enter().beats(t, 3) // a new replica has not seen larger numbers
			c.beats(t, 3)
			for range 7 { // the server might have just come back
				a.leave(t.Context())
				c.beats(t, 3)
			}
			c.beats(t, 2)
		})
	}
}

// A killed replica is dropped after a while, by Redis' clock, and so is the list.
func TestKilledProcessIsForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	where := redisconn.Options{URL: server.Addr}
	const lives = 500 * time.Millisecond
	counting(t, where, Options{Lives: time.Hour}).beats(t, 1) // it is killed now
	survivor := counting(t, where, Options{Lives: lives})
	redistest.Eventually(t, "a process that was killed to be forgotten", func(ctx context.Context) error {
		if err := survivor.beat(ctx); survivor.last != 1 {
			return errors.Join(err, fmt.Errorf("%d processes", survivor.last))
		}
		return nil
	})
	client := server.Client(t)
	if ttl := client.PTTL(t.Context(), names).Val(); ttl <= 0 || ttl > lives {
		t.Errorf("the key lives another %v", ttl)
	}
	redistest.Eventually(t, "the key to be gone", func(ctx context.Context) error {
		if client.Exists(ctx, names).Val() > 0 {
			return context.DeadlineExceeded
		}
		return nil
	})
}

// The last number stays while Redis is gone, and when it comes back empty.
func TestNumberWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	where := redisconn.Options{URL: server.Addr}
	numbers := make(chan int, 100)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	runs := counting(t, where, Options{Every: time.Millisecond, Changed: func(n int) { numbers <- n }})
	others := []*Fleet{counting(t, where, Options{}), counting(t, where, Options{})}
	for i, o := range others {
		o.beats(t, i+1)
	}
	runs.o.Every = time.Second // bounds a beat, also on a busy machine
	go func() { ended <- runs.Run(ctx) }()
	if n := <-numbers; n != 3 {
		t.Errorf("%d processes, want 3", n)
	}
	others[0].beats(t, 3)
	server.Kill(t)
	for range 3 {
		if err := others[0].beat(t.Context()); err == nil {
			t.Error("a server that is gone answered")
		}
	}
	if len(numbers) > 0 {
		t.Errorf("without Redis the number is %d", <-numbers)
	}
	server.Restart(t)
	redistest.Eventually(t, "Redis to be back", func(ctx context.Context) error { return others[0].beat(ctx) })
	others[0].beats(t, 3) // the others have sent no heartbeat yet
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for n := range others {
		others[n].leave(t.Context())
	}
	if n := server.Client(t).Exists(t.Context(), names).Val(); n != 0 {
		t.Error("all have left, and the key is there")
	}
}

// A foreign value under the key is replaced.
func TestListIsAForeignValue(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	for _, spoil := range []func(context.Context) error{
		func(ctx context.Context) error { return client.Set(ctx, names, "zz 99\nab 12", 0).Err() },
		func(ctx context.Context) error {
			return client.Set(ctx, names, strings.Repeat("ab 9999999999999999\n", 50), 0).Err()
		},
		func(ctx context.Context) error { return client.RPush(ctx, names, "a").Err() },
	} {
		if err := client.Del(t.Context(), names).Err(); err != nil {
			t.Fatal(err)
		}
		if err := spoil(t.Context()); err != nil {
			t.Fatal(err)
		}
		counting(t, redisconn.Options{URL: server.Addr}, Options{}).beats(t, 1)
	}
}
