package redisconn

import (
	"context"
	"errors"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Ping asks whether Redis answers. On a cluster every primary is asked, side by side, and one that answers is enough. ctx bounds it, and
// no breaker stands before it.
func Ping(ctx context.Context, client goredis.UniversalClient) error {
	c, ok := client.(*goredis.ClusterClient)
	if !ok {
		return ping(ctx, client)
	}
	answer := make(chan error, 1)
	say := func(err error) {
		select {
		case answer <- err:
		default: // another one was faster
		}
	}
	go func() {
		var mu sync.Mutex
		var errs []error
		err := c.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			err := ping(ctx, node)
			if err == nil {
				say(nil)
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			return nil
		})
		say(errors.Join(append(errs, err)...))
	}()
	return <-answer
}

type probeKey struct{}

// Probe marks what this process asks for itself: no call may fail for it (aside). No breaker stands before a ping that is marked: whether
// Redis is there is asked of Redis.
func Probe(ctx context.Context) context.Context { return context.WithValue(ctx, probeKey{}, true) }

func isProbe(ctx context.Context) bool { return ctx.Value(probeKey{}) != nil }

// ping asks one server. While all connections are in use there is one at least, and its turn is waited for.
func ping(ctx context.Context, c goredis.UniversalClient) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.Ping(Probe(ctx)).Err()
		if !errors.Is(err, goredis.ErrPoolTimeout) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}
