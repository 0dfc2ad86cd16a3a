package first

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

func redisRate(address string) (func(ctx context.Context, customer string) (bool, error), error) {
	l := redis_rate.NewLimiter(redis.NewClient(&redis.Options{Addr: address}))
	return func(ctx context.Context, customer string) (bool, error) {
		r, err := l.Allow(ctx, customer, redis_rate.PerSecond(10))
		if err != nil {
			return false, err
		}
		return r.Allowed > 0, nil
	}, nil
}
