package limits_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
)

// answers gives one decision after the other.
type answers struct {
	list  []limits.Decision
	asked []time.Duration // times of the calls of Decide, after start
	start time.Time
}

func (a *answers) Decide(context.Context, *limits.Request) (limits.Decision, error) {
	d := a.list[len(a.asked)]
	a.asked = append(a.asked, time.Since(a.start))
	return d, nil
}

// A wait lasts for the time in the answers, and a little longer if others took the room.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{start: time.Now(), list: []limits.Decision{
			{RetryAfter: time.Second}, {RetryAfter: 2 * time.Second}, {Allowed: true, Delay: time.Minute},
		}}
		d, err := limits.Wait(t.Context(), a, limits.NewRequest("d", "k", "v"))
		if err != nil || !d.Allowed || len(a.asked) != 3 {
			t.Fatalf("%+v %v, asked %v", d, err, a.asked)
		}
		if first := a.asked[1]; first != time.Second {
			t.Errorf("asked again after %s", first)
		}
		if second := a.asked[2] - a.asked[1]; second < 2*time.Second || second >= 2*time.Second+10*time.Millisecond {
			t.Errorf("asked for the third time after %s", second)
		}
		if end := time.Since(a.start) - a.asked[2]; end != time.Minute {
			t.Errorf("the delay lasted %s", end)
		}
	})
}

// A thousand programs that compete come back at different times.
func TestWaitsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := make(map[time.Duration]bool)
		for range 1000 {
			a := &answers{start: time.Now(), list: []limits.Decision{{RetryAfter: time.Second}, {RetryAfter: time.Second}, {Allowed: true}}}
			if _, err := limits.Wait(t.Context(), a, limits.NewRequest("d")); err != nil {
				t.Fatal(err)
			}
			times[a.asked[2].Truncate(10*time.Microsecond)] = true
		}
		if len(times) < 250 {
			t.Errorf("%d different times", len(times))
		}
	})
}

// A wait that cannot succeed ends immediately.
func TestWaitThatCannotSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			answer limits.Decision
			want   error
		}{
			{limits.Decision{RetryAfter: limits.Never}, limits.ErrNever},
			{limits.Decision{RetryAfter: time.Minute}, limits.ErrTooLong},
			{limits.Decision{Allowed: true, Delay: time.Minute}, limits.ErrTooLong},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			start := time.Now()
			_, err := limits.Wait(ctx, &answers{start: start, list: []limits.Decision{c.answer}}, limits.NewRequest("d"))
			if !errors.Is(err, c.want) || time.Since(start) != 0 {
				t.Errorf("%+v: %v after %s", c.answer, err, time.Since(start))
			}
			cancel()
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := limits.Wait(ctx, &answers{list: []limits.Decision{{RetryAfter: time.Hour}}}, limits.NewRequest("d")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// Without an answer, the time of the next attempt is unknown: the pauses grow.
func TestWaitWithoutAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{start: time.Now(), list: make([]limits.Decision, 100)} // fail closed
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := limits.Wait(ctx, a, limits.NewRequest("d")); !errors.Is(err, limits.ErrTooLong) || len(a.asked) < 5 {
			t.Errorf("%v, asked at %v", err, a.asked)
		}
	})
}

func ExampleNew() {
	r := limits.NewRequest("api", "customer", "42", "path", "/search")
	fmt.Printf("%+v\n", r.Descriptors[0].Entries)
	// Output: [{Key:customer Value:42} {Key:path Value:/search}]
}
