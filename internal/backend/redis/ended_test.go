package redis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A request whose caller has gone before Start has no answer. The same holds on a cluster.
func TestStartForACallerThatHasGone(t *testing.T) {
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, ContextTimeoutEnabled: true})
	s := redis.New(redis.Options{Client: client})
	t.Cleanup(func() { _, _ = s.Close(), client.Close() })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, settle := range map[string]func(*backend.Request) error{
		"take": func(r *backend.Request) error { return backend.Await(gone, s, time.Now(), r) },
		"start": func(r *backend.Request) error {
			settled, err := s.Start(gone, time.Now(), nil, r, func(error) { t.Error("called") })
			if !settled {
				t.Error("start waits")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &backend.Request{
				Takes:    []backend.Take{{Key: []byte("k"), Hits: 1, Limit: &descriptor.Limit{Requests: 1}}},
				Outcomes: make([]backend.Outcome, 1),
			}
			if err := settle(r); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			if !r.Outcomes[0].Failed {
				t.Error("the take is not marked as failed")
			}
		})
	}
}
