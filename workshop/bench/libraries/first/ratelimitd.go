package first

import (
	"context"

	"github.com/ratelimitd/ratelimitd/ratelimit"
)

func ratelimitdMemory() (func(ctx context.Context, customer string) (bool, error), error) {
	l, err := ratelimit.New("api", ratelimit.Rule{Key: "customer", Limit: ratelimit.PerSecond(10)})
	return func(ctx context.Context, customer string) (bool, error) {
		return l.Allow(ctx, "api", "customer", customer)
	}, err
}
