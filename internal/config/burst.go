package config

import "time"

// A reload waits until nothing has changed for quietFor, but not longer than atMost after the first change: an editor
// that writes, renames and sets modes is one change, and a program that writes without end is still heard.
const (
	quietFor = 100 * time.Millisecond
	atMost   = 500 * time.Millisecond
)

// burst gathers events that come close together. The zero value is ready; it is used by one goroutine.
type burst struct {
	first time.Time // zero: no event is waiting
	timer *time.Timer
}

// add notes an event.
func (b *burst) add() {
	now := time.Now()
	if b.first.IsZero() {
		b.first = now
	}
	wait := min(quietFor, b.first.Add(atMost).Sub(now))
	if b.timer == nil {
		b.timer = time.NewTimer(wait)
		return
	}
	b.timer.Reset(wait)
}

// over is received from when the burst is over; reset must follow.
func (b *burst) over() <-chan time.Time {
	if b.timer == nil {
		return nil
	}
	return b.timer.C
}

// reset makes ready for the next burst.
func (b *burst) reset() {
	b.first = time.Time{}
	if b.timer != nil {
		b.timer.Stop()
	}
}
