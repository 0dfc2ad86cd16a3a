package migrate

import (
	"context"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
)

// redisRate asks for 1 of 10 requests, for 10 more, which is too many, for 1 after a reset, and for 1 with another
// limit.
func redisRate(ctx context.Context, client *redis.Client, id string) (passed []bool, err error) {
	l := redis_rate.NewLimiter(client)
	for _, n := range []int{1, 10} {
		r, err := l.AllowN(ctx, id, redis_rate.PerHour(10), n)
		if err != nil {
			return nil, err
		}
		passed = append(passed, r.Allowed > 0)
	}
	if err := l.Reset(ctx, id); err != nil {
		return nil, err
	}
	r, err := l.Allow(ctx, id, redis_rate.PerHour(20))
	if err != nil {
		return nil, err
	}
	return append(passed, r.Allowed > 0, r.Remaining == 19), nil
}

func keyedInsteadOfRedisRate(ctx context.Context, client *redis.Client, id string) (passed []bool, err error) {
	k, err := ratelimit.OpenKeyed(ctx, ratelimit.Bucket(10, time.Hour, 10), ratelimit.Options{
		Store: redisstore.New(redisstore.Options{Client: client}),
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = k.Close() }()
	for _, n := range []uint64{1, 10} {
		ok, err := k.AllowN(ctx, id, n)
		if err != nil {
			return nil, err
		}
		passed = append(passed, ok)
	}
	if err := k.Reset(ctx, id); err != nil {
		return nil, err
	}
	plan := ratelimit.Bucket(20, time.Hour, 20)
	ok, err := k.AllowWith(ctx, id, 1, plan)
	if err != nil {
		return nil, err
	}
	return append(passed, ok, true), nil
}
