package follow

import "time"

// A reload waits until nothing has changed for quietFor, but at most atMost after the first change. So the writes,
// renames and mode changes of an editor are one change, and a program that never stops writing does not prevent the
// other files from being read. After a write to a file the wait is grownFor, because a program that writes a file in
// place may pause.
const (
	quietFor = 100 * time.Millisecond
	grownFor = 400 * time.Millisecond
	atMost   = 500 * time.Millisecond
)

// burst collects events that are close together in time. The zero value is ready to use. Only one goroutine may use it.
type burst struct {
	first time.Time // zero while no event is waiting
	due   time.Time // when the newest event has been quiet for long enough
	timer *time.Timer
}

// add records an event. The burst ends when no other event follows within quiet.
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
