package redis_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// No call fails because a heartbeat has the only connection, even if calls fail when none is free.
func TestHeartbeatHasTheConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := connect(t, redisconn.Options{URL: server.Addr, PoolSize: 1, OnEmpty: "ERROR"})
	store := redis.New(redis.Options{Client: client, Timeout: time.Minute})
	t.Cleanup(func() { _ = store.Close() })
	beat := func() error {
		_, err := store.Heartbeat(t.Context(), "processes", "ab", time.Minute, false)
		return err
	}
	redistest.Eventually(t, "a connection", func(ctx context.Context) error { return client.Ping(ctx).Err() })

	server.Pause(t)
	ended := make(chan error, 2)
	go func() {
		err := beat()
		for err != nil && t.Context().Err() == nil { // a ping of ours may have the connection first
			runtime.Gosched()
			err = beat()
		}
		ended <- err
	}()
	redistest.Eventually(t, "the heartbeat to have the connection", func(context.Context) error {
		if s := client.PoolStats(); s.TotalConns != 1 || s.IdleConns != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	go func() {
		ended <- backend.Await(t.Context(), store, time.Now(), take("k", limit(10, descriptor.Year), 1))
	}()
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
