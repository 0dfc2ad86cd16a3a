package redis_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// patience is the timeout of calls in tests of exactness. Only tests of bounded waits measure time.
const patience = 5 * time.Second

// longest is how long a call in these tests may take on a busy machine.
const longest = 20 * time.Second

// connect returns a client as the service makes it for its counters.
func connect(t testing.TB, o redisconn.Options) goredis.UniversalClient {
	t.Helper()
	o.Lanes = redis.Lanes
	return redisconntest.Connect(t, o)
}

func TestMain(m *testing.M) {
	redisconn.LogTo(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

func TestSuite(t *testing.T) {
	client, here := dial(t, redistest.Start(t)), new(atomic.Int64)
	backendtest.Run(t, func(testing.TB) backend.Store {
		return everySecondHere{redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: true}), new(atomic.Int64), here}
	})
	if here.Load() == 0 {
		t.Error("no caller sent its request itself")
	}
}

// everySecondHere is a store for which every second caller sends its request itself, if it can.
type everySecondHere struct {
	*redis.Store
	requests, here *atomic.Int64
}

// Start implements backend.Store.
func (s everySecondHere) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request, done func(error)) (settled bool, err error) {
	if s.requests.Add(1)%2 == 0 && len(r.Takes) > 0 {
		if settled, err := s.TakeHere(ctx, now, r); settled {
			s.here.Add(1)
			return true, err
		}
	}
	return s.Store.Start(ctx, now, b, r, done)
}

func TestSuiteOfReservations(t *testing.T) {
	client := dial(t, redistest.Start(t))
	backendtest.RunReservations(t, func(testing.TB) backend.Store {
		return redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: true})
	})
}

func TestSuiteOfReservationsTogether(t *testing.T) {
	client, here := dial(t, redistest.Start(t)), new(atomic.Int64)
	backendtest.RunReservationsTogether(t, func(testing.TB) backend.Store {
		return everySecondHere{redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: true}), new(atomic.Int64), here}
	})
	if here.Load() == 0 {
		t.Error("no caller sent its request itself")
	}
}

func TestSuiteOfReservationsStepped(t *testing.T) {
	client := dial(t, redistest.Start(t))
	for _, small := range []int{64, 2} {
		t.Run(fmt.Sprintf("up to %d reservations in a small list", small), func(t *testing.T) {
			backendtest.RunReservationsStepped(t, func(testing.TB) backend.Store {
				s := redis.New(redis.Options{Client: client, Timeout: patience, CallerClock: true})
				s.SetFewReservations(small)
				return s
			})
		})
	}
}

// On a cluster, with all counters in one slot: those of several slots are not settled as one. A second record makes a
// list large here.
func TestSuiteOfReservationsOnACluster(t *testing.T) {
	client := dialCluster(t, redistest.StartCluster(t, redistest.Setup{}))
	backendtest.RunReservations(t, func(testing.TB) backend.Store {
		s := redis.New(redis.Options{Client: client, Timeout: 10 * time.Second, CallerClock: true})
		s.SetFewReservations(1)
		return inOneSlot{s}
	})
}

// inOneSlot is a store whose counters are in one slot.
type inOneSlot struct{ *redis.Store }

// Start implements backend.Store.
func (s inOneSlot) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, s.take(ctx, now, r)
}

func (s inOneSlot) take(ctx context.Context, now time.Time, r *backend.Request) error {
	tagged := *r
	tagged.Takes = slices.Clone(r.Takes)
	for i := range tagged.Takes {
		tagged.Takes[i].Key = append([]byte("{slot}"), r.Takes[i].Key...)
	}
	return backend.Await(ctx, s.Store, now, &tagged)
}

func (s inOneSlot) Reset(ctx context.Context, counters []backend.Counter) error {
	tagged := slices.Clone(counters)
	for i := range tagged {
		tagged[i].Key = append([]byte("{slot}"), counters[i].Key...)
	}
	return s.Store.Reset(ctx, tagged)
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
