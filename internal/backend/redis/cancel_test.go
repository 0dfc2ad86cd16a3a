package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
)

// A call that gets the failed dial of another, cancelled call has not been cancelled itself: it gets an answer by
// on_error.
func TestCancelledDialOfAnotherCall(t *testing.T) {
	t.Parallel()
	client := goredis.NewClient(&goredis.Options{
		MaxRetries: -1, DialerRetries: 1,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			return nil, fmt.Errorf("dial: %w", context.Canceled)
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	s := redis.New(redis.Options{Client: client})
	err := takeOne(t.Context(), s, "k")
	if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("Await returns %v, want an error that is ErrUnavailable and not context.Canceled", err)
	}
}
