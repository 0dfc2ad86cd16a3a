package redisconn_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// A login takes far longer than any call may wait. Calls do not wait for it, and it continues without them: later calls
// get the connection.
func TestLoginIsSlow(t *testing.T) {
	s := redistest.Start(t, "--user", "counter", "on", ">"+secret, "~*", "+@all")
	for name, opts := range map[string]redisconn.Options{
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
			for range 20 { // a call that waited for its login would wait forever
				if err := call(t.Context()); err == nil {
					t.Fatal("it was answered before the login was")
				}
			}
			answer()
			redistest.Eventually(t, "a call to work", call)
		})
	}
}

// A login that hangs ends with the connect timeout, and its place in the pool is free again.
func TestLoginHangs(t *testing.T) {
	s := redistest.Start(t, "--user", "counter", "on", ">"+secret, "~*", "+@all")
	away := startRelay(t, s.Addr)
	away.first.Store(int64(3 * time.Second))
	c := connect(t, redisconn.Options{URL: away.Addr().String(), Auth: "counter:" + secret, DialTimeout: 100 * time.Millisecond, PoolSize: 2})
	for range 4 {
		if err := c.Ping(bounded(t)).Err(); err == nil {
			t.Fatal("it answered")
		}
	}
	away.first.Store(0)
	redistest.Eventually(t, "a call to work", func(ctx context.Context) error { return c.Ping(ctx).Err() })
}

// The sentinel that the client is subscribed to hangs while the others fail over in good order. The former primary
// takes writes for some ten seconds more.
func TestSwitchIsMissed(t *testing.T) {
	t.Parallel()
	w := redistest.StartWatched(t, redistest.Setup{})
	client := connect(t, redisconn.Options{Type: "SENTINEL", URL: w.URL()})
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
	redistest.Eventually(t, "the new primary to be reached", func(ctx context.Context) error { return reaches(ctx, client, admin) })
	role := former.Client(t).Do(bounded(t), "role").String()
	t.Logf("the new primary was known after %v, and reached %v later; the role of the former one is %.30s", known.Sub(start), time.Since(known), role)
	if took := time.Since(known); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}
