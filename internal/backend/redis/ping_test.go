package redis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// On a cluster one primary that answers is enough. Without any answer, the ping ends when ctx does.
func TestPingOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.Setup{})
	client := connect(t, redisconn.Options{Type: "CLUSTER", URL: strings.Join(c.Addrs(), ",")})
	s := redis.New(redis.Options{Client: client})
	ping := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		start := time.Now()
		err := s.Ping(ctx)
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		return err
	}
	redistest.Eventually(t, "all to answer", ping)
	for _, n := range c.Nodes[3:] { // the replicas, so that none takes over
		n.Kill(t)
	}
	c.Nodes[0].Pause(t)
	c.Nodes[1].Kill(t)
	if err := ping(t.Context()); err != nil {
		t.Errorf("with one primary of three: %v", err)
	}
	c.Nodes[2].Pause(t)
	if err := ping(t.Context()); err == nil {
		t.Error("with none it answers")
	}
	c.Nodes[2].Continue(t)
	redistest.Eventually(t, "it to answer again", ping)
}

// While all connections are in use, a ping waits for one, even if calls would fail immediately then.
func TestPingWaitsForAConnection(t *testing.T) {
	server := redistest.Start(t)
	for _, onEmpty := range []string{"WAIT", "ERROR"} {
		client := connect(t, redisconn.Options{URL: server.Addr, PoolSize: 1, OnEmpty: onEmpty})
		s := redis.New(redis.Options{Client: client})
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		held, free := make(chan struct{}), make(chan error, 1)
		go func() {
			free <- client.Watch(ctx, func(tx *goredis.Tx) error {
				if err := tx.Ping(ctx).Err(); err != nil { // it has the connection from here on
					return err
				}
				close(held)
				return tx.BLPop(ctx, time.Second, "nothing").Err()
			})
		}()
		select {
		case <-held:
		case err := <-free:
			t.Fatal(err)
		}
		if err := s.Ping(ctx); err != nil {
			t.Errorf("%s: %v", onEmpty, err)
		}
		if err := <-free; !errors.Is(err, goredis.Nil) {
			t.Errorf("%s: %v", onEmpty, err)
		}
	}
}
