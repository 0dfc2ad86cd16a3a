package redis_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Redis' own clock is set back and ahead. That costs each counter at most one window, or one drain.
func TestRedisClockIsSet(t *testing.T) {
	t.Parallel()
	server, set := redistest.StartWithClock(t)
	client := dial(t, server)
	store := redis.New(redis.Options{Client: client, Timeout: patience})
	for name, l := range backendtest.PerMinute() {
		ahead := time.Duration(0)
		capacity := int64(l.Capacity())
		take := func(hits int64) backend.Outcome {
			r := &backend.Request{Takes: []backend.Take{{Key: []byte(name), Limit: l, Hits: hits}}, Outcomes: make([]backend.Outcome, 1)}
			if err := backend.Await(t.Context(), store, time.Now(), r); err != nil {
				t.Fatal(err)
			}
			return r.Outcomes[0]
		}
		step := func(by time.Duration) {
			ahead += by.Round(time.Second)
			set(ahead)
		}
		// The tenth second of a minute: no window ends while the test takes hits.
		inMinute := func() {
			at, err := client.Time(t.Context()).Result()
			if err != nil {
				t.Fatal(err)
			}
			step(70*time.Second - at.Sub(at.Truncate(time.Minute)))
		}
		// fill takes all hits together, and checks that one more is denied.
		fill := func(when string) {
			if o := take(capacity); !o.Allowed {
				t.Fatalf("%s, %s: %+v", name, when, o)
			}
			if o := take(1); o.Allowed {
				t.Fatalf("%s, one hit more %s: %+v", name, when, o)
			}
		}
		// recover waits as long as the answers say, and checks that this is at most a window and a second.
		recovers := func(when string) {
			o := take(1)
			if o.RetryAfter > 61*time.Second {
				t.Errorf("%s, %s: %+v", name, when, o)
			}
			if !o.Allowed {
				step(o.RetryAfter + time.Second)
				if o := take(1); !o.Allowed {
					t.Errorf("%s, %s, after the time to wait: %+v", name, when, o)
				}
			}
			step(3 * time.Minute)
			inMinute()
			fill(when + ", minutes later")
			step(3 * time.Minute)
			inMinute()
		}

		step(48 * time.Hour)
		inMinute()
		fill("at first")
		step(-time.Hour)
		if o := take(1); o.Allowed {
			t.Errorf("%s, back by an hour: %+v", name, o)
		}
		recovers("back by an hour")

		fill("before it is ahead for a moment")
		step(24 * time.Hour)
		fill("ahead by a day")
		step(2*time.Second - 24*time.Hour)
		recovers("ahead by a day for two seconds")

		// Its end has come, and the clock is set back into its window: it may be opened twice, and no more often.
		fill("before its end")
		step(2 * time.Minute)
		take(0)
		step(-2 * time.Minute)
		passed := int64(0)
		for take(1).Allowed {
			if passed++; passed > capacity {
				t.Fatalf("%s, back into a window that was over: %d hits of %d passed", name, passed, capacity)
			}
		}
		recovers("back into a window that was over")
	}
}
