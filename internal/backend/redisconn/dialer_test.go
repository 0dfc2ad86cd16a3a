package redisconn_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
)

func TestAtMostEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		call := redisconn.AtMostEvery(time.Second, func() { calls++ })
		for step, want := range []int{1, 1, 2, 2, 3} { // every half second
			call()
			call()
			if calls != want {
				t.Errorf("after %d half seconds: %d calls, want %d", step, calls, want)
			}
			time.Sleep(time.Second / 2) //nolint:forbidigo // virtual time
		}
	})
}
