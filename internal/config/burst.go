package config

import "time"

// A reload waits until nothing has changed for quietFor, but not longer than atMost after the first change: an editor
// that writes, renames and sets modes is one change, and a program that writes without end does not keep the other files
// from being read. After a write to a file the wait is grownFor: a program that writes a file in place may pause.
const (
	quietFor = 100 * time.Millisecond
	grownFor = 400 * time.Millisecond
	atMost   = 500 * time.Millisecond
)

// burst gathers events that come close together. The zero value is ready; it is used by one goroutine.
type burst struct {
	first time.Time // zero: no event is waiting
	due   time.Time // when the newest event has been quiet for long enough
	timer *time.Timer
}

// add notes an event. The burst ends when no other one comes for that long.
func (b *burst) add(quiet time.Duration) {
	now := time.Now()
	if b.first.IsZero() {
		b.first = now
	}
	if due := now.Add(quiet); due.After(b.due) {
		b.due = due
	}
	wait := min(b.due.Sub(now), b.first.Add(atMost).Sub(now))
	if b.timer == nil {
		b.timer = time.NewTimer(wait)
		return
	}
	b.timer.Reset(wait)
}

// quiet reports whether enough time has passed since the newest event.
func (b *burst) quiet() bool { return !b.first.IsZero() && !time.Now().Before(b.due) }

// over returns a channel that receives when the burst is over. The receiver calls reset.
func (b *burst) over() <-chan time.Time {
	if b.timer == nil {
		return nil
	}
	return b.timer.C
}

// reset prepares for the next burst.
func (b *burst) reset() {
	b.first, b.due = time.Time{}, time.Time{}
	if b.timer != nil {
		b.timer.Stop()
	}
}
