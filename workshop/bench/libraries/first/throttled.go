package first

import (
	"context"

	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
)

func throttledMemory() (func(ctx context.Context, customer string) (bool, error), error) {
	store, err := memstore.NewCtx(65536)
	if err != nil {
		return nil, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(10), MaxBurst: 9})
	return func(ctx context.Context, customer string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, customer, 1)
		return !limited, err
	}, err
}
