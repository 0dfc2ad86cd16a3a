package first

import (
	"context"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
)

func sethvargoMemory() (func(ctx context.Context, customer string) (bool, error), error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: 10, Interval: time.Second})
	return func(ctx context.Context, customer string) (bool, error) {
		_, _, _, ok, err := store.Take(ctx, customer)
		return ok, err
	}, err
}
