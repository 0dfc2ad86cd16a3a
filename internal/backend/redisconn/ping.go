package redisconn

import (
	"context"
	"errors"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Ping asks whether Redis answers. On a cluster it asks all primaries at the same time, and one answer is enough. Only
// ctx bounds it, and breakers do not stop it.
func Ping(ctx context.Context, client goredis.UniversalClient) error {
	cluster, ok := client.(*goredis.ClusterClient)
	if !ok {
		return pingNode(ctx, client)
	}
	answer := make(chan error, 1)
	report := func(err error) {
		select {
		case answer <- err:
		default: // another one was faster
		}
	}
	go func() {
		var mu sync.Mutex
		var errs []error
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			err := pingNode(ctx, node)
			if err == nil {
				report(nil)
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			return nil
		})
		report(errors.Join(append(errs, err)...))
	}()
	return <-answer
}

// pingNode asks one server. If all connections are in use it waits for one.
func pingNode(ctx context.Context, c goredis.UniversalClient) error {
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
