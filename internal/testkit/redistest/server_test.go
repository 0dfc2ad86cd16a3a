package redistest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func TestServerLives(t *testing.T) {
	ctx := t.Context()
	var s *redistest.Server
	t.Run("while its test runs", func(t *testing.T) {
		s = redistest.Start(t, "--maxmemory", "100mb")
		c := s.Client(t)
		got, err := c.ConfigGet(ctx, "maxmemory").Result()
		if err != nil || got["maxmemory"] != "104857600" {
			t.Fatalf("maxmemory: %v, %v", got, err)
		}
		if err := c.Set(ctx, "a", "1", 0).Err(); err != nil {
			t.Fatal(err)
		}

		overSocket := goredis.NewClient(&goredis.Options{Network: "unix", Addr: s.Socket})
		defer func() { _ = overSocket.Close() }()
		if v, err := overSocket.Get(ctx, "a").Result(); v != "1" || err != nil {
			t.Fatalf("over the socket: %q, %v", v, err)
		}

		s.Stop(t)
		if _, err := net.Dial("tcp", s.Addr); err == nil {
			t.Fatal("a stopped server accepts connections")
		}
		s.Restart(t)
		if err := c.Get(ctx, "a").Err(); !errors.Is(err, goredis.Nil) {
			t.Fatalf("a restarted server should be empty and there, got %v", err)
		}
		s.Kill(t)
		s.Restart(t)
		if err := c.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	})
	if s == nil {
		t.Skip("NOT RUN without redis-server: workshop/scripts/install-redis gets it")
	}
	if _, err := net.Dial("tcp", s.Addr); err == nil {
		t.Error("the server outlives its test")
	}
	if _, err := os.Stat(s.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's directory outlives its test: %v", err)
	}
}

func TestServerPauses(t *testing.T) {
	s := redistest.Start(t)
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	defer func() { _ = c.Close() }()
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx).Err(); err == nil {
		t.Fatal("a paused server answers")
	}
	s.Continue(t)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}
