package descriptor

import (
	"errors"
	"regexp"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// Windows of different lengths never share a counter.
func TestWindowsHaveCountersOfTheirOwn(t *testing.T) {
	seen := map[string]Window{}
	for _, w := range []Window{
		{Unit: Second}, {Unit: Millisecond}, {Unit: Millisecond, Multiplier: 10}, {Unit: Millisecond, Multiplier: 100}, {Unit: Millisecond, Multiplier: 1001},
		{Unit: Millisecond, Multiplier: 1010}, {Unit: Millisecond, Multiplier: 1100}, {Unit: Millisecond, Multiplier: 10_001}, {Unit: Second, Multiplier: 10},
	} {
		tag := string((&Limit{Window: w}).appendTag(nil))
		if other, is := seen[tag]; is {
			t.Errorf("%s and %s are both %q", w.Words(), other.Words(), tag)
		}
		seen[tag] = w
	}
	for _, w := range []Window{
		{Unit: Week}, {Unit: Week, WeekStart: 6}, {Unit: Day, Multiplier: 7}, {Unit: Month, Multiplier: 3}, {Unit: Day, Multiplier: 90}, {Unit: Day, Multiplier: 365}, {Unit: Year},
	} {
		w.Location = time.UTC
		tag := string((&Limit{Window: w}).appendTag(nil))
		if other, is := seen[tag]; is {
			t.Errorf("%s and %s are both %q", w.Words(), other.Words(), tag)
		}
		seen[tag] = w
	}
	if a, b := (&Limit{Window: Window{Unit: Millisecond, Multiplier: 2000}}), (&Limit{Window: Window{Unit: Second, Multiplier: 2}}); !a.SharesCounter(b) {
		t.Error("two seconds are two counters")
	}
}

var saysMost = regexp.MustCompile(`, (\d+) is the most;`)

// An error about a number that is too large says the largest one: that one is accepted, and the next one is rejected.
func TestTheLargestNumberIsRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{
			Algorithm: rapid.SampledFrom([]Algorithm{SlidingWindow, TokenBucket, LeakyBucket}).Draw(t, "algorithm"),
			Window: Window{Unit: rapid.SampledFrom([]Unit{Second, Minute, Hour, Day, Week, Month, Year}).Draw(t, "unit"),
				Multiplier: rapid.Uint32Range(0, 90).Draw(t, "multiplier")},
			Requests:  rapid.OneOf(rapid.Uint64Range(1<<32, MaxRequests), rapid.Uint64Range(1, 1<<20)).Draw(t, "requests"),
			Burst:     rapid.Uint64Range(1, MaxRequests).Draw(t, "burst"),
			Precision: rapid.SampledFrom([]uint32{0, 1, 2, 10}).Draw(t, "precision"),
		}
		err := l.Compile()
		var about *LimitError
		if !errors.As(err, &about) {
			return
		}
		number := &l.Burst
		if about.Key == "requests_per_unit" {
			number = &l.Requests
		}
		said := saysMost.FindStringSubmatch(err.Error())
		if said == nil {
			return // a mistake of another kind
		}
		most, err := strconv.ParseUint(said[1], 10, 64)
		if err != nil || most >= *number {
			t.Fatalf("%d is rejected, and the most is %s", *number, said[1])
		}
		*number = most + 1
		if err := l.Compile(); err == nil {
			t.Fatalf("%d is accepted too", most+1)
		}
		if *number = most; most == 0 {
			return // no bucket of this rate can be counted
		}
		var other *LimitError
		if err := l.Compile(); errors.As(err, &other) && other.Key == about.Key && saysMost.MatchString(err.Error()) {
			t.Fatal(err)
		}
	})
}
