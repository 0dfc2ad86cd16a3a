package first

import (
	"context"
	"time"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
)

func ululeMemory() (func(ctx context.Context, customer string) (bool, error), error) {
	l := limiter.New(memory.NewStore(), limiter.Rate{Period: time.Second, Limit: 10})
	return func(ctx context.Context, customer string) (bool, error) {
		r, err := l.Get(ctx, customer)
		return !r.Reached, err
	}, nil
}
