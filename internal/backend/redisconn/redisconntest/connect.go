// Package redisconntest connects tests to their Redis as the service does.
package redisconntest

import (
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

// Connect returns a client of Redis as the service makes it. The client is closed at the end of the test.
func Connect(t testing.TB, opts redisconn.Options) goredis.UniversalClient {
	t.Helper()
	c, err := redisconn.Dial(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
