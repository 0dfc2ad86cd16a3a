package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// A short window has a number with many digits. With a large count, the state has no room for all of them. The script
// must still find the window: otherwise it treats the count as one of a past window, and starts again at 0.
func TestShortSlidingWindows(t *testing.T) {
	s := redis.New(redis.Options{Client: dial(t, redistest.Start(t)), Timeout: patience, CallerClock: true})
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, millis := range []uint32{1, 2, 20, 100, 170, 200} {
		for _, requests := range []int64{9, 99, 100, 999, 1000, 9999, 10_000, 1_000_000, 10_000_000} {
			l := &descriptor.Limit{Requests: uint64(requests), Algorithm: descriptor.SlidingWindow, Window: descriptor.Window{Unit: descriptor.Millisecond, Multiplier: millis}}
			if err := l.Compile(); err != nil {
				t.Fatal(err)
			}
			ask := func(hits int64) backend.Outcome {
				r := &backend.Request{Takes: []backend.Take{{Key: fmt.Append(nil, millis, requests), Limit: l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
				if err := backend.Await(t.Context(), s, now, r); err != nil {
					t.Fatal(err)
				}
				return r.Outcomes[0]
			}
			if o := ask(requests); !o.Allowed {
				t.Errorf("%d per %d ms: %+v", requests, millis, o)
			}
			ask(1)
			if o := ask(0); o.Used != requests {
				t.Errorf("%d per %d ms: %d are used after a denied hit", requests, millis, o.Used)
			}
		}
	}
}
