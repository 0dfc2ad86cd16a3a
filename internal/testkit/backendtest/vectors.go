package backendtest

import (
	"encoding/json"
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
		Limit, Capacity, Refill, Burst, Queue uint64
		NoDelay                               uint32
		Window, Interval, Rate, Align, Mode   string
		RefillMode                            string `json:"refill_mode"`
		CountDenied                           bool   `json:"count_denied"`
		Prime                                 *struct{ Previous, Current int64 }
	}
	Steps []vectorStep
}

type vectorStep struct {
	T          int64 `json:"t_us"`
	Hits       int64
	Allowed    bool
	Remaining  uint64
	RetryAfter int64  `json:"retry_after_us"`
	ResetAfter int64  `json:"reset_after_us"`
	Delay      *int64 `json:"delay_us"`
}

// corrected holds steps that are recorded wrong. In clock-back-gcra the clock goes back by ten seconds, which is two
// drains of the bucket. The recording denies hits until the clock has caught up, although each of its answers promises
// a hit one second later. The correction follows the vector's own source, which allows one bucket of debt at most: one
// second after the first denial a hit passes, and ten seconds after that the bucket is full.
var corrected = map[string]map[int]vectorStep{
	"clock-back-gcra": {
		2: {T: 1490832091000000, Hits: 1, Allowed: true, ResetAfter: 5_000_000},
		3: {T: 1490832101000000, Hits: 1, Allowed: true, Remaining: 4, ResetAfter: 1_000_000},
	},
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
		l.Requests, length = n, per
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

// runVectors tests a store with worked examples from the literature and from other implementations. Fixed windows in
// them drop denied hits, except where an example differs. Steps that are recorded wrong are in corrected. The numbers
// of the sliding windows are computed with the rule that a hit of exactly one window ago no longer counts: their
// sources leave that moment open.
func runVectors(t *testing.T, open func(t testing.TB) backend.Store) {
	raw, err := testdata.ReadFile("testdata/algorithms.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 31 {
		t.Fatalf("%d vectors", len(vectors))
	}
	s := open(t)
	for i := range vectors {
		v := &vectors[i]
		t.Run(v.ID, func(t *testing.T) {
			l := v.limit(t)
			k := key(newCase(), "k", l)
			if p := v.Config.Prime; p != nil {
				// The hits of the previous window are taken at a time when they are sure to pass, and the hits of the current
				// window at its very end. Then the clock goes back to the first step.
				start, end := l.Window.Bounds(v.Steps[0].T)
				mustPass(t, s, 2*start-end, k, l, p.Previous)
				mustPass(t, s, end-1, k, l, p.Current)
			}
			for i, step := range v.Steps {
				if right, wrong := corrected[v.ID][i]; wrong {
					step = right
				}
				o := one(t, s, time.UnixMicro(step.T), backend.Take{Key: k, Limit: l, Hits: step.Hits,
					CountDenied: v.Config.CountDenied})
				retry := o.RetryAfter.Microseconds()
				if o.RetryAfter == backend.Never {
					retry = -1
				}
				if o.Allowed != step.Allowed || o.Remaining(l.Capacity()) != step.Remaining ||
					retry != step.RetryAfter || o.ResetAfter.Microseconds() != step.ResetAfter {
					t.Fatalf("step %d at %d, %d hits: got %s, want %+v", i, step.T, step.Hits, outcomeText(&o), step)
				}
				if step.Delay != nil && o.Delay.Microseconds() != *step.Delay {
					t.Fatalf("step %d: delay %s, want %d us", i, o.Delay, *step.Delay)
				}
			}
		})
	}
}

func mustPass(t testing.TB, s backend.Store, at int64, key []byte, l *descriptor.Limit, hits int64) {
	t.Helper()
	if o := one(t, s, time.UnixMicro(at), backend.Take{Key: key, Limit: l, Hits: hits}); !o.Allowed || o.Used < hits {
		t.Fatalf("%d hits at %d: %+v", hits, at, o)
	}
}
