package redis_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A call that gets the failed dial of another, cancelled call has not been cancelled itself: its caller gets an answer by on_error.
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
	limit := &descriptor.Limit{Requests: 1, Window: descriptor.Window{Unit: descriptor.Year}}
	if err := limit.Compile(); err != nil {
		t.Fatal(err)
	}
	r := &backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: limit, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	err := s.Take(t.Context(), time.Now(), r)
	if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("Take returns %v, want an error that is ErrUnavailable and not context.Canceled", err)
	}
}
