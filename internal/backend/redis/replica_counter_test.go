package redis_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

const replicasKey = "prefix:processes"

// beat sends a heartbeat and checks the number of processes.
func beat(t *testing.T, c *redis.ReplicaCounter, want int) {
	t.Helper()
	if n, err := c.Beat(t.Context()); n != want || err != nil {
		t.Errorf("%d processes, %v; want %d", n, err, want)
	}
}

// Processes count each other, on every kind of server. One that leaves is gone at once; a smaller number is used after it was seen
// for a while.
func TestProcessesCountEachOther(t *testing.T) {
	t.Parallel()
	single := func(args ...string) func(*testing.T) redisconn.Options {
		return func(t *testing.T) redisconn.Options { return redisconn.Options{URL: redistest.Start(t, args...).Addr} }
	}
	for name, start := range map[string]func(*testing.T) redisconn.Options{
		"single": single(),
		// The rights that docs/do/redis.md lists.
		"few rights":          single("--user", "default", "on", "nopass", "~*", "-@all", "+evalsha", "+eval", "+get", "+mget", "+set", "+incrby", "+del", "+pttl", "+time", "+ping"),
		"no time for scripts": single("--rename-command", "TIME", ""),
		"cluster": func(t *testing.T) redisconn.Options {
			return redisconn.Options{Type: "CLUSTER", URL: strings.Join(redistest.StartCluster(t, redistest.Setup{}).Addrs(), ",")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			where := start(t)
			join := func() *redis.ReplicaCounter {
				store := redis.New(redis.Options{Client: connect(t, where)})
				return redis.NewReplicaCounter(redis.ReplicaCounterOptions{Store: store, Key: replicasKey, Lives: time.Hour})
			}
			a, b, c := join(), join(), join()
			beat(t, a, 1)
			beat(t, b, 2)
			beat(t, c, 3)
			beat(t, a, 3)
			if err := b.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			beat(t, join(), 3) // a new process has not seen larger numbers
			beat(t, c, 3)
			for range 7 { // the server might have just come back
				if err := a.Leave(t.Context()); err != nil {
					t.Fatal(err)
				}
				beat(t, c, 3)
			}
			beat(t, c, 2)
		})
	}
}

// A process that was killed is forgotten after a while, by Redis' clock, and so is the list.
func TestKilledProcessIsForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redis.New(redis.Options{Client: dial(t, server)})
	join := func(lives time.Duration) *redis.ReplicaCounter {
		return redis.NewReplicaCounter(redis.ReplicaCounterOptions{Store: store, Key: replicasKey, Lives: lives})
	}
	const lives = 500 * time.Millisecond
	beat(t, join(time.Hour), 1) // it is killed now
	survivor := join(lives)
	redistest.Eventually(t, "a process that was killed to be forgotten", func(ctx context.Context) error {
		if n, err := survivor.Beat(ctx); n != 1 {
			return errors.Join(err, fmt.Errorf("%d processes", n))
		}
		return nil
	})
	client := server.Client(t)
	if ttl := client.PTTL(t.Context(), replicasKey).Val(); ttl <= 0 || ttl > lives {
		t.Errorf("the key lives another %v", ttl)
	}
	redistest.Eventually(t, "the key to be gone", func(ctx context.Context) error {
		if client.Exists(ctx, replicasKey).Val() > 0 {
			return context.DeadlineExceeded
		}
		return nil
	})
}

// The last number stays while Redis is gone, and when it comes back empty.
func TestReplicasWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redis.New(redis.Options{Client: dial(t, server)})
	numbers := make(chan int, 100)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	c := redis.NewReplicaCounter(redis.ReplicaCounterOptions{Store: store, Key: replicasKey, Every: time.Millisecond, Changed: func(n int) { numbers <- n }})
	others := []*redis.ReplicaCounter{redis.NewReplicaCounter(redis.ReplicaCounterOptions{Store: store, Key: replicasKey}), redis.NewReplicaCounter(redis.ReplicaCounterOptions{Store: store, Key: replicasKey})}
	for i, o := range others {
		beat(t, o, i+1)
	}
	go func() { ended <- c.Run(ctx) }()
	if n := <-numbers; n != 3 {
		t.Errorf("%d processes, want 3", n)
	}
	beat(t, others[0], 3)
	server.Kill(t)
	for range 3 {
		if _, err := others[0].Beat(t.Context()); err == nil {
			t.Error("a server that is gone answered")
		}
	}
	if len(numbers) > 0 {
		t.Errorf("without Redis the number is %d", <-numbers)
	}
	server.Restart(t)
	redistest.Eventually(t, "Redis to be back", func(ctx context.Context) error { _, err := others[0].Beat(ctx); return err })
	beat(t, others[0], 3) // the others have sent no heartbeat yet
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for n := range others {
		if err := others[n].Leave(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := server.Client(t).Exists(t.Context(), replicasKey).Val(); n != 0 {
		t.Error("all have left, and the key is there")
	}
}

// A foreign value under the key is replaced.
func TestReplicasUnderAForeignValue(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	store := redis.New(redis.Options{Client: dial(t, server)})
	for _, spoil := range []func(context.Context) error{
		func(ctx context.Context) error { return client.Set(ctx, replicasKey, "zz 99\nab 12", 0).Err() },
		func(ctx context.Context) error {
			return client.Set(ctx, replicasKey, strings.Repeat("ab 9999999999999999\n", 50), 0).Err()
		},
		func(ctx context.Context) error { return client.RPush(ctx, replicasKey, "a").Err() },
	} {
		if err := client.Del(t.Context(), replicasKey).Err(); err != nil {
			t.Fatal(err)
		}
		if err := spoil(t.Context()); err != nil {
			t.Fatal(err)
		}
		beat(t, redis.NewReplicaCounter(redis.ReplicaCounterOptions{Store: store, Key: replicasKey}), 1)
	}
}

// No call fails because a heartbeat has the only connection, even if calls fail when none is free.
func TestHeartbeatHasTheConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := connect(t, redisconn.Options{URL: server.Addr, PoolSize: 1, OnEmpty: "ERROR"})
	store := redis.New(redis.Options{Client: client, Timeout: time.Minute})
	t.Cleanup(func() { _ = store.Close() })
	counter := redis.NewReplicaCounter(redis.ReplicaCounterOptions{Store: store, Key: replicasKey})
	redistest.Eventually(t, "a connection", func(ctx context.Context) error { return client.Ping(ctx).Err() })

	server.Pause(t)
	ended := make(chan error, 2)
	go func() {
		_, err := counter.Beat(t.Context())
		for err != nil && t.Context().Err() == nil { // a ping of ours may have the connection first
			runtime.Gosched()
			_, err = counter.Beat(t.Context())
		}
		ended <- err
	}()
	redistest.Eventually(t, "the heartbeat to have the connection", func(context.Context) error {
		if s := client.PoolStats(); s.TotalConns != 1 || s.IdleConns != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	go func() { ended <- store.Take(t.Context(), time.Now(), take("k", limit(10, descriptor.Year), 1)) }()
	redistest.Eventually(t, "the call to find none", func(context.Context) error {
		if s := client.PoolStats(); s.Timeouts == 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	server.Continue(t)
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
