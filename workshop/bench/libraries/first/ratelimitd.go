package first

import (
	"context"

	"github.com/ratelimitd/ratelimitd/ratelimit"
)

func ratelimitdMemory() (func(ctx context.Context, customer string) (bool, error), error) {
	perCustomer, err := ratelimit.NewKeyed(ratelimit.PerSecond(10))
	return perCustomer.Allow, err
}
