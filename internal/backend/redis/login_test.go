package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// A login takes far longer than any call may wait. Callers do not wait for it, and it goes on without them: later ones
// have the connection.
func TestLoginIsSlow(t *testing.T) {
	s := redistest.Start(t, "--user", "counter", "on", ">"+secret, "~*", "+@all")
	for name, opts := range map[string]redis.DialOptions{
		"user":         {Auth: "counter:" + secret},
		"user and URL": {URL: "redis://counter:" + secret + "@%s/3"},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			away := startHeldRelay(t, s.Addr, hold)
			answer := sync.OnceFunc(func() { close(hold) })
			defer answer()
			opts.DialTimeout = longest
			if opts.URL == "" {
				opts.URL = "%s"
			}
			opts.URL = fmt.Sprintf(opts.URL, away.Addr())
			c := connect(t, opts)
			call := func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 15*time.Millisecond)
				defer cancel()
				return c.Incr(ctx, "k").Err()
			}
			for range 20 { // a call that waited for its login would wait for ever
				if err := call(t.Context()); err == nil {
					t.Fatal("it was answered before the login was")
				}
			}
			answer()
			within(t, "a call to work", call)
		})
	}
}

// A login that hangs ends with the time for dialling, and the pool is as good as before.
func TestLoginHangs(t *testing.T) {
	s := redistest.Start(t, "--user", "counter", "on", ">"+secret, "~*", "+@all")
	away := startRelay(t, s.Addr)
	away.first.Store(int64(3 * time.Second))
	c := connect(t, redis.DialOptions{URL: away.Addr().String(), Auth: "counter:" + secret, DialTimeout: 100 * time.Millisecond, PoolSize: 2})
	for range 4 {
		if err := c.Ping(bounded(t)).Err(); err == nil {
			t.Fatal("it answered")
		}
	}
	away.first.Store(0)
	within(t, "a call to work", func(ctx context.Context) error { return c.Ping(ctx).Err() })
}

// The sentinel that is listened to hangs while the others fail over, in good order: the former primary takes writes for
// some ten seconds more.
func TestSwitchIsMissed(t *testing.T) {
	t.Parallel()
	w := redistest.StartWatched(t, redistest.Setup{})
	client := connect(t, redis.DialOptions{Type: "SENTINEL", URL: w.URL()})
	if err := client.Incr(bounded(t), "k").Err(); err != nil {
		t.Fatal(err)
	}
	w.Await(t)
	for _, s := range w.Sentinels {
		if list := s.Client(t).Do(bounded(t), "client", "list", "type", "pubsub").Val(); list != "" {
			s.Pause(t)
		}
	}
	former := w.Primary(t)
	start := time.Now()
	var ordered error
	for _, s := range w.Sentinels {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		ordered = s.Client(t).Do(ctx, "sentinel", "failover", w.Name).Err()
		cancel()
		if ordered == nil {
			break
		}
	}
	if ordered != nil {
		t.Fatal(ordered)
	}
	admin := w.AwaitOther(t, former).Client(t)
	known := time.Now()
	within(t, "the new primary to be reached", func(ctx context.Context) error { return reaches(ctx, client, admin) })
	role := former.Client(t).Do(bounded(t), "role").String()
	t.Logf("the new primary was known after %v, and reached %v later; the former one says %.30s", known.Sub(start), time.Since(known), role)
	if took := time.Since(known); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// On a cluster one primary that answers is enough, and it is a matter of the caller's time to find out that none does.
func TestPingOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.Setup{})
	client := connect(t, redis.DialOptions{Type: "CLUSTER", URL: strings.Join(c.Addrs(), ",")})
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
	within(t, "all to answer", ping)
	for _, n := range c.Nodes[3:] { // the replicas, so that nobody takes over
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
	within(t, "it to answer again", ping)
}

// A pool that is in use up to its last connection says nothing about Redis, whatever else is done about it.
func TestPingWaitsForAConnection(t *testing.T) {
	server := redistest.Start(t)
	for _, onEmpty := range []string{"WAIT", "ERROR"} {
		client := connect(t, redis.DialOptions{URL: server.Addr, PoolSize: 1, OnEmpty: onEmpty})
		s := redis.New(redis.Options{Client: client})
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		held, free := make(chan struct{}), make(chan error, 1)
		go func() {
			free <- client.Watch(ctx, func(tx *goredis.Tx) error {
				if err := tx.Ping(ctx).Err(); err != nil { // only now it has the connection
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
