package quota_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/quota"
)

// The store answers no question with a lower number than an earlier one of this process, so numbers ascend: when the clock is set back, and when
// a bucket is forgotten and made anew while the store still remembers its last question.
func TestNumbersAscend(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	rate := quota.Rate{PerSecond: 10, Burst: 10}
	b := quota.NewSharedBucket(now, rate)
	last := uint64(0)
	ask := func(at time.Time) {
		t.Helper()
		a := b.Ask(at, "k")
		if a.Number <= last {
			t.Errorf("question %d comes after question %d", a.Number, last)
		}
		last = a.Number
	}
	for range 100 {
		ask(now)
	}
	ask(now.Add(-time.Hour))
	b = quota.NewSharedBucket(now.Add(time.Second), rate)
	ask(now.Add(time.Second))
}
