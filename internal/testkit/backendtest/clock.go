package backendtest

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// PerMinute returns limits of 10 a minute, one for every way to keep a counter. Each of them allows its whole capacity
// in one request, and no hit counts for more than two minutes.
func PerMinute() map[string]*descriptor.Limit {
	return map[string]*descriptor.Limit{
		"fixed window":                    Limit("10/1m"),
		"fixed window, first hit":         Limit("10/1m,first_hit"),
		"sliding window":                  Limit("10/1m,sliding"),
		"sliding window, precision":       Limit("10/1m,sliding,precision=4"),
		"sliding log":                     Limit("10/1m,log"),
		"token bucket":                    Limit("10/1m,token,burst=10"),
		"token bucket, with a fraction":   Limit("7/1m,token,burst=7"),
		"token bucket, interval":          Limit("10/1m,token,interval,burst=10"),
		"token bucket, interval from hit": Limit("10/1m,token,interval,first_hit,burst=10"),
		"leaky bucket":                    Limit("10/1m,leaky,burst=9"),
	}
}

// runClock sets the clock of full counters back, and ahead for a moment. This costs each of them at most one window, or
// one drain of a bucket, and then everything is as it was.
func runClock(t *testing.T, open func(t testing.TB) backend.Store) {
	const window = time.Minute
	for name, l := range PerMinute() {
		for _, step := range []time.Duration{
			time.Millisecond, 5 * time.Second, 59 * time.Second, time.Minute, 2 * time.Minute, 150 * time.Second, time.Hour,
			4 * time.Hour, 25 * time.Hour,
		} {
			t.Run(fmt.Sprintf("%s, back by %v", name, step), func(t *testing.T) {
				c := newStepped(t, open(t), l, epoch.Add(48*time.Hour+17*time.Second))
				c.fill()
				c.now = c.now.Add(-step)
				if o := c.take(1); o.Allowed && step < 256*window { // a store need not distinguish windows that are further away
					t.Fatalf("after the step: %s", outcomeText(&o))
				}
				c.recovers(2*window, step > 2*window)
			})
		}
		t.Run(name+", ahead by a day for two seconds", func(t *testing.T) {
			c := newStepped(t, open(t), l, epoch.Add(48*time.Hour+17*time.Second))
			c.fill()
			c.now = c.now.Add(24 * time.Hour)
			c.fill()
			c.now = c.now.Add(2*time.Second - 24*time.Hour)
			c.recovers(2*window, true)
		})
		// Requests that only read the counter, and requests that another counter denies, do not keep it from recovering.
		t.Run(name+", back by an hour, without a take of its own", func(t *testing.T) {
			c := newStepped(t, open(t), l, epoch.Add(48*time.Hour+17*time.Second))
			c.fill()
			c.now = c.now.Add(-time.Hour)
			for range 3 {
				c.take(0)
				c.now = c.now.Add(window)
			}
			if o := c.take(int64(l.Capacity())); !o.Allowed {
				t.Errorf("three windows after a read: %s", outcomeText(&o))
			}

			c = newStepped(t, open(t), l, epoch.Add(48*time.Hour+17*time.Second))
			c.fill()
			c.now = c.now.Add(-time.Hour)
			closed := Limit("0/1h")
			for range 3 {
				r := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, 2), Takes: []backend.Take{
					{Key: key(string(c.key), "closed", closed), Limit: closed, Hits: 1},
					{Key: c.key, Limit: l, Hits: 1, Member: 1},
				}}
				if err := backend.Await(t.Context(), c.store, c.now, r); err != nil || r.Outcomes[0].Allowed {
					t.Fatalf("%v %s", err, outcomeText(&r.Outcomes[0]))
				}
				c.now = c.now.Add(window)
			}
			if o := c.take(int64(l.Capacity())); !o.Allowed {
				t.Errorf("three windows after a request that another counter denied: %s", outcomeText(&o))
			}
		})
	}
	t.Run("a month of a calendar", func(t *testing.T) {
		l := Limit("10/1mo,in=Asia/Seoul")
		c := newStepped(t, open(t), l, time.Date(2028, 6, 10, 12, 0, 0, 0, time.UTC))
		c.fill()
		c.now = time.Date(2028, 5, 31, 12, 0, 0, 0, time.UTC)
		if o := c.take(1); o.Allowed || o.RetryAfter != time.Date(2028, 6, 30, 15, 0, 0, 0, time.UTC).Sub(c.now) {
			t.Errorf("back into the month before: %s", outcomeText(&o))
		}
		c.now = time.Date(2027, 2, 10, 12, 0, 0, 0, time.UTC)
		if o := c.take(1); o.Allowed || o.RetryAfter != time.Date(2027, 2, 28, 15, 0, 0, 0, time.UTC).Sub(c.now) {
			t.Errorf("back into an earlier month: %s", outcomeText(&o))
		}
		c.now = time.Date(2027, 2, 28, 15, 0, 0, 0, time.UTC)
		c.fill()
	})
	t.Run("property", func(t *testing.T) { runSteps(t, open(t)) })
}

// stepped is one counter whose clock is set.
type stepped struct {
	*testing.T
	store backend.Store
	limit *descriptor.Limit
	key   []byte
	now   time.Time
}

func newStepped(t *testing.T, s backend.Store, l *descriptor.Limit, now time.Time) *stepped {
	return &stepped{T: t, store: s, limit: l, key: key(newCase(), "k", l), now: now}
}

func (c *stepped) take(hits int64) backend.Outcome {
	c.Helper()
	return one(c.T, c.store, c.now, backend.Take{Key: c.key, Limit: c.limit, Hits: hits})
}

// fill takes all hits, one by one, and one more, which is denied.
func (c *stepped) fill() {
	c.Helper()
	for n := range c.limit.Capacity() {
		if o := c.take(1); !o.Allowed {
			c.Fatalf("hit %d of %d: %s", n, c.limit.Capacity(), outcomeText(&o))
		}
	}
	if o := c.take(1); o.Allowed {
		c.Fatalf("one hit more: %s", outcomeText(&o))
	}
}

// recovers checks that a hit passes within the given time, or within half of it plus a second if soon, exactly when the
// answers show it, and that the counter is as good as new another two minutes later.
func (c *stepped) recovers(within time.Duration, soon bool) {
	c.Helper()
	if soon {
		within = within/2 + time.Second
	}
	began := c.now
	for {
		o := c.take(1)
		if o.Allowed {
			break
		}
		if waited := c.now.Sub(began) + o.RetryAfter; waited > within || o.RetryAfter <= 0 {
			c.Fatalf("%v after the step: %s; a hit should pass within %v", c.now.Sub(began), outcomeText(&o), within)
		}
		c.now = c.now.Add(o.RetryAfter - time.Microsecond)
		if o := c.take(1); o.Allowed || o.RetryAfter != time.Microsecond {
			c.Fatalf("%v after the step, a microsecond early: %s", c.now.Sub(began), outcomeText(&o))
		}
		c.now = c.now.Add(time.Microsecond)
		if o := c.take(0); o.Used >= int64(c.limit.Capacity()) {
			c.Fatalf("%v after the step, when a hit is to pass: %s", c.now.Sub(began), outcomeText(&o))
		}
	}
	c.now = c.now.Add(2 * time.Minute)
	c.fill()
}

// runSteps floods one counter while its clock is set back and ahead. In every span of true time, the allowed hits
// exceed the algorithm's bound for such a span by at most one window, or one bucket, for each step.
func runSteps(t *testing.T, s backend.Store) {
	rapid.Check(t, func(rt *rapid.T) {
		l := drawSmall(rt, []descriptor.Unit{descriptor.Second, descriptor.Minute, descriptor.Hour})
		k := key(newCase(), "k", l)
		passed, off := epoch.Add(400*24*time.Hour).UnixMicro(), int64(0)
		length := l.Window.Length().Microseconds()
		pause := length / max(1, 2*int64(l.Requests))
		var all []admission
		var steps []int64 // when they happened
		for range rapid.IntRange(10, 60).Draw(rt, "takes") {
			passed += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, pause), rapid.Int64Range(0, 4*pause)).Draw(rt,
				"pause")
			if rapid.IntRange(0, 9).Draw(rt, "step") == 0 {
				off += rapid.OneOf(
					rapid.Int64Range(-3*length, 3*length), rapid.Int64Range(-length/10, length/10),
					rapid.Int64Range(-100*length, 100*length),
				).Draw(rt, "by")
				steps = append(steps, passed)
			}
			hits := rapid.SampledFrom([]int64{1, 1, 1, 2, 3}).Draw(rt, "hits")
			o := one(rt, s, time.UnixMicro(passed+off), backend.Take{Key: k, Limit: l, Hits: hits})
			if !o.Allowed {
				continue
			}
			all = append(all, admission{passed, hits})
			sum := int64(0)
			for i := len(all) - 1; i >= 0; i-- {
				sum += all[i].hits
				within := int64(0)
				for _, at := range steps {
					if at >= all[i].at && at <= passed {
						within++
					}
				}
				// Any span: where windows lie on the clock, it touches one more than it is long.
				most := int64(l.Capacity())*(1+within) + int64(l.Requests)*((passed-all[i].at)/length+2)
				if sum > most {
					rt.Fatalf("%s: %d passed within %v and %d steps of the clock; at most %d may",
						limitText(l), sum, time.Duration(passed-all[i].at)*time.Microsecond, within, most)
				}
			}
		}
	})
}
