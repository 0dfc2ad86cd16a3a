package descriptor

import (
	"testing"
	"time"
)

func TestWords(t *testing.T) {
	seoul, err := time.LoadLocation("Asia/Seoul")
	if err != nil {
		t.Fatal(err)
	}
	half := Window{Unit: Second, Multiplier: 30}
	for want, l := range map[string]Limit{
		"5 per minute, fixed window":                                                  {Requests: 5, Window: Window{Unit: Minute, Multiplier: 1}},
		"5 per 30 seconds, token bucket, burst 10":                                    {Requests: 5, Window: half, Algorithm: TokenBucket, Burst: 10},
		"5 per 30 seconds, fixed window from the first hit, denied hits count":        {Requests: 5, Window: half, FirstHit: true, CountDenied: DeniedCount},
		"5 per day, fixed window on the calendar of Asia/Seoul":                       {Requests: 5, Window: Window{Unit: Day, Location: seoul}},
		"5 per 30 seconds, sliding window, precision 3, leased":                       {Requests: 5, Window: half, Algorithm: SlidingWindow, Precision: 3, Lease: true},
		"5 per 30 seconds, sliding log, denied hits do not count":                     {Requests: 5, Window: half, Algorithm: SlidingLog, CountDenied: DeniedDrop},
		"5 per 30 seconds, token bucket, burst 9, refilled at intervals":              {Requests: 5, Window: half, Algorithm: TokenBucket, Burst: 9, Interval: true},
		"5 per 30 seconds, leaky bucket, 9 may wait":                                  {Requests: 5, Window: half, Algorithm: LeakyBucket, Burst: 9},
		"5 per 30 seconds, leaky bucket, 9 may wait, 2 of them without delay":         {Requests: 5, Window: half, Algorithm: LeakyBucket, Burst: 9, NoDelay: 2},
		"5 in flight, each for at most 30s":                                           {Requests: 5, Window: half, Algorithm: Concurrency},
		"5 in flight, each for at most 1m":                                            {Requests: 5, Window: Window{Unit: Second, Multiplier: 60}, Algorithm: Concurrency},
		"5 in flight, each for at most 1h0m30s":                                       {Requests: 5, Window: Window{Unit: Second, Multiplier: 3630}, Algorithm: Concurrency},
		"5 in flight, each for at most 1h30m":                                         {Requests: 5, Window: Window{Unit: Second, Multiplier: 5400}, Algorithm: Concurrency},
		"5 in flight, each for at most 10h":                                           {Requests: 5, Window: Window{Unit: Hour, Multiplier: 10}, Algorithm: Concurrency},
		"5 per 30 seconds, leaky bucket, 9 may wait without delay":                    {Requests: 5, Window: half, Algorithm: LeakyBucket, Burst: 9, NoDelay: NoDelayAll},
		"1 per hour, token bucket, burst 1, refilled at intervals from the first hit": {Requests: 1, Window: Window{Unit: Hour}, Algorithm: TokenBucket, Burst: 1, Interval: true, FirstHit: true},
	} {
		if got := l.Words(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
