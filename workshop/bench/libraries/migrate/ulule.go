package migrate

import (
	"context"
	"net/http"
	"time"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// ulule returns whether three requests pass and whether one passes after a reset, and it returns middleware.
func ulule(ctx context.Context, id string, mux http.Handler) (passed []bool, handler http.Handler, err error) {
	l := limiter.New(memory.NewStore(), limiter.Rate{Period: time.Minute, Limit: 2})
	for range 3 {
		c, err := l.Get(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		passed = append(passed, !c.Reached)
	}
	if _, err = l.Reset(ctx, id); err != nil {
		return nil, nil, err
	}
	c, err := l.Increment(ctx, id, 2)
	if err != nil {
		return nil, nil, err
	}
	passed = append(passed, !c.Reached)
	c, err = l.Peek(ctx, id)
	passed = append(passed, c.Remaining > 0)
	return passed, stdlib.NewMiddleware(l).Handler(mux), err
}

func keyedInsteadOfUlule(ctx context.Context, id string,
	mux http.Handler) (passed []bool, handler http.Handler, err error) {
	k, err := ratelimit.NewKeyed(ratelimit.PerMinute(2))
	if err != nil {
		return nil, nil, err
	}
	for range 3 {
		ok, err := k.Allow(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		passed = append(passed, ok)
	}
	if err = k.Reset(ctx, id); err != nil {
		return nil, nil, err
	}
	ok, err := k.AllowN(ctx, id, 2)
	if err != nil {
		return nil, nil, err
	}
	passed = append(passed, ok)
	s, err := k.Left(ctx, id)
	passed = append(passed, s.Remaining > 0)
	return passed, httplimit.ByKey(k, httplimit.RemoteAddress("id"))(mux), err
}
