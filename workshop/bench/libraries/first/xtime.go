package first

import (
	"context"
	"sync"

	"golang.org/x/time/rate"
)

func xTime() (func(ctx context.Context, customer string) (bool, error), error) {
	var mu sync.Mutex
	limiters := make(map[string]*rate.Limiter) // grows with every customer: nothing removes them
	return func(_ context.Context, customer string) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		l := limiters[customer]
		if l == nil {
			l = rate.NewLimiter(10, 10)
			limiters[customer] = l
		}
		return l.Allow(), nil
	}, nil
}
