package backend_test

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

func TestMargin(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ left, late, want time.Duration }{
		{20 * ms, 0, 3 * ms},
		{15 * ms, 0, 3 * ms},
		{10 * ms, 0, 2 * ms},
		{20 * ms, 2 * ms, 5 * ms},
		{20 * ms, 15 * ms, 8 * ms}, // never more than 8 of 20
		{10 * ms, 15 * ms, 4500 * time.Microsecond},
		{time.Second, 15 * ms, 18 * ms},
		{-ms, 5 * ms, -ms / 5}, // the deadline has passed
	} {
		if got := backend.Margin(c.left, c.late); got != c.want {
			t.Errorf("with %s left and timers %s late: %s, want %s", c.left, c.late, got, c.want)
		}
	}
}

// Timers fire every millisecond for some seconds, and some of them are late.
func TestLateness(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		every       int // how many timers there are for each late one
		late        time.Duration
		least, most time.Duration // bounds of the estimate once it has settled
	}{
		"none is late":                  {1, 0, 0, 0},
		"all are late":                  {1, 4 * ms, 3900 * time.Microsecond, 4 * ms},
		"one in a hundred is late":      {100, 10 * ms, 5 * ms, 8 * ms},
		"one in a thousand is late":     {1000, 10 * ms, 0, 2500 * time.Microsecond},
		"the machine stood still often": {100, time.Minute, 10 * ms, 20 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			var l backend.Lateness
			now := time.Unix(1_800_000_000, 0)
			least, most := time.Hour, time.Duration(0)
			for i := range 5000 {
				now = now.Add(ms)
				late := time.Duration(0)
				if i%c.every == 0 {
					late = c.late
				}
				l.Timer(now, late)
				if i >= 3000 {
					least, most = min(least, l.Now(now)), max(most, l.Now(now))
				}
			}
			if least < c.least || most > c.most {
				t.Errorf("it is from %s to %s, want %s to %s", least, most, c.least, c.most)
			}
			if got := l.Now(now.Add(time.Second)); got != 0 {
				t.Errorf("a second later it is %s", got)
			}
			if got := l.Now(now.Add(-time.Hour)); got > c.late {
				t.Errorf("after the clock was set back it is %s", got)
			}
		})
	}
	var l backend.Lateness
	now := time.Unix(1_800_000_000, 0)
	l.Timer(now, 100*ms)
	if got := l.Now(now); got > 2500*time.Microsecond {
		t.Errorf("after one pause it is %s", got)
	}
}
