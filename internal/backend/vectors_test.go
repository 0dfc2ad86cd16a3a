package backend_test

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

type vector struct {
	ID        string
	Algorithm string
	Config    struct {
		Limit, Capacity, Refill, Burst, Queue, NoDelay uint32
		Window, Interval, Rate, Align, Mode            string
		RefillMode                                     string `json:"refill_mode"`
		CountDenied                                    bool   `json:"count_denied"`
		Prime                                          *struct{ Previous, Current int64 }
	}
	Steps []struct {
		T          int64 `json:"t_us"`
		Hits       int64
		Allowed    bool
		Remaining  uint32
		RetryAfter int64  `json:"retry_after_us"`
		ResetAfter int64  `json:"reset_after_us"`
		Delay      *int64 `json:"delay_us"`
	}
}

func (v *vector) limit(t *testing.T) *descriptor.Limit {
	t.Helper()
	c := &v.Config
	l := &descriptor.Limit{Requests: c.Limit, FirstHit: c.Align == "first_hit"}
	length := c.Window
	switch v.Algorithm {
	case "fixed_window":
	case "sliding_window_counter":
		l.Algorithm = descriptor.SlidingWindow
	case "sliding_window_log":
		l.Algorithm = descriptor.SlidingLog
	case "token_bucket":
		l.Algorithm = descriptor.TokenBucket
		l.Burst = c.Burst
		if c.RefillMode != "" {
			l.Interval = c.RefillMode == "interval"
			l.Requests, l.Burst, length = c.Refill, c.Capacity, c.Interval
		}
	case "leaky_bucket":
		l.Algorithm = descriptor.LeakyBucket
		l.Burst, l.NoDelay = c.Queue, c.NoDelay
		if c.Mode == "policer" {
			l.Burst, l.NoDelay = c.Capacity-1, descriptor.NoDelayAll
		}
	default:
		t.Fatalf("unknown algorithm %q", v.Algorithm)
	}
	if rate, per, ok := strings.Cut(c.Rate, "/"); ok {
		n, err := strconv.ParseUint(rate, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		l.Requests, length = uint32(n), per
	}
	if length[0] < '0' || length[0] > '9' {
		length = "1" + length
	}
	d, err := time.ParseDuration(length)
	if err != nil {
		t.Fatal(err)
	}
	l.Window = descriptor.Window{Unit: descriptor.Second, Multiplier: uint32(d / time.Second)}
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestVectors holds the arithmetic to worked examples of the literature and of other implementations.
func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/algorithms.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		t.Run(v.ID, func(t *testing.T) {
			l := v.limit(t)
			var s backend.State
			if p := v.Config.Prime; p != nil {
				start, _ := l.Window.Bounds(v.Steps[0].T)
				s = backend.State{Start: start, Count: p.Current, Prev: p.Previous}
			}
			for i, step := range v.Steps {
				takes := []backend.Take{{Limit: l, Hits: step.Hits, CountDenied: v.Config.CountDenied}}
				var out [1]backend.Outcome
				backend.Settle(takes, []*backend.State{&s}, out[:], step.T)
				o := out[0]
				retry := o.RetryAfter.Microseconds()
				if o.RetryAfter == backend.Never {
					retry = -1
				}
				if o.Allowed != step.Allowed || o.Remaining(l.Capacity()) != step.Remaining ||
					retry != step.RetryAfter || o.ResetAfter.Microseconds() != step.ResetAfter {
					t.Fatalf("step %d at %d, %d hits: got allowed %t remaining %d retry %d reset %d, want %+v",
						i, step.T, step.Hits, o.Allowed, o.Remaining(l.Capacity()), retry, o.ResetAfter.Microseconds(), step)
				}
				if step.Delay != nil && o.Delay.Microseconds() != *step.Delay {
					t.Fatalf("step %d: delay %s, want %d us", i, o.Delay, *step.Delay)
				}
			}
		})
	}
}
