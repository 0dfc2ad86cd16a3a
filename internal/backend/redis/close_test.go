package redis_test

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Close ends all goroutines of a store. Requests that wait are answered, and later ones too.
func TestClose(t *testing.T) {
	server := redistest.Start(t)
	before := goleak.IgnoreCurrent()
	client, err := redisconn.Dial(redisconn.Options{URL: server.Addr})
	if err != nil {
		t.Fatal(err)
	}
	s := redis.New(redis.Options{Client: client, Timeout: patience})
	l := limit(1_000_000, descriptor.Year)
	var taken atomic.Int64
	var wg sync.WaitGroup
	const goroutines, each = 32, 100
	half := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			for range each {
				if err := backend.Await(t.Context(), s, time.Now(), take("k", l, 1)); err != nil {
					t.Error(err)
				}
				if taken.Add(1) == goroutines*each/2 {
					close(half)
				}
			}
		})
	}
	<-half
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if o := mustTake(t, s, "k", l, 0); o.Used != goroutines*each {
		t.Errorf("%d of %d hits were counted", o.Used, goroutines*each)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, before)
}

// A store may be closed while a goroutine still looks at a counter. A look starts a search for the layout, and Close
// waits for searches: the race detector notices a search that starts during that wait. The Redis accepts connections
// and never answers.
func TestCloseDuringALook(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	for i := range 20 {
		client, err := redisconn.Dial(redisconn.Options{URL: silent.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		s := redis.New(redis.Options{Client: client, Timeout: 10 * time.Millisecond})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Peek(t.Context(), time.Now(), take("k", limit(1, descriptor.Year), 1)) // Redis does not answer
		}()
		for range i { // the look comes before, during and after Close
			runtime.Gosched()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-done
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}
