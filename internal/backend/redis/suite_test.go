package redis_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
	"github.com/ratelimitd/ratelimitd/internal/servicetest"
)

// patience is the timeout of calls in tests of exactness. Only tests of bounded waits measure time.
const patience = 5 * time.Second

// longest is how long a call in these tests may take on a busy machine.
const longest = 20 * time.Second

var connect = servicetest.Connect

func TestMain(m *testing.M) {
	redisconn.LogTo(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

func TestSuite(t *testing.T) {
	client := dial(t, redistest.Start(t))
	backendtest.Run(t, func(testing.TB) backend.Store {
		return redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: true})
	})
}

// The store settles requests whose callers do not wait for it in the same way.
func TestSuiteStarted(t *testing.T) {
	client := dial(t, redistest.Start(t))
	backendtest.Run(t, func(t testing.TB) backend.Store {
		s := redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: true})
		t.Cleanup(func() { _ = s.Close() })
		return backendtest.Started(s)
	})
}

// dial returns a client of a server. The client is closed at the end of the test.
func dial(t testing.TB, s *redistest.Server) goredis.UniversalClient {
	t.Helper()
	return connect(t, redisconn.Options{URL: s.Addr})
}

// dialCluster returns a client of a cluster. The client is closed at the end of the test.
func dialCluster(t testing.TB, c *redistest.Cluster) goredis.UniversalClient {
	t.Helper()
	return connect(t, redisconn.Options{Type: "CLUSTER", URL: strings.Join(c.Addrs(), ",")})
}
