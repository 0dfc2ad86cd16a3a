package backend

import "time"

// Margin returns how long before its deadline a call stops waiting for a store, so that an answer by on_error still
// arrives in time: 3 ms, or a fifth of the time left if that is less. late is how late timers are at present
// (Lateness.Now): it is added, up to a quarter of the time left.
func Margin(left, late time.Duration) time.Duration {
	return min(3*time.Millisecond, left/5) + max(min(late, left/4), 0)
}

// Lateness estimates how late the timers of this process are. On a busy machine the timer that ends a call's wait fires
// late, and the steps after it are delayed by about the same time: the goroutines that encode and write the answer wait
// for a CPU, too.
//
// Each timer that is late moves the estimate up by an eighth of the difference, and within a second the estimate falls
// back to zero. So one pause hardly counts, while it is near the longest lateness if timers are late ten times a
// second, although only one of a hundred is.
//
// The zero value is an estimate of zero. A Lateness is guarded by its owner's lock.
type Lateness struct {
	late time.Duration
	at   time.Time
}

const (
	latenessRise = 8                     // one timer counts by 1/8 of the difference
	latenessLife = time.Second           // time until the estimate falls to zero
	latenessMost = 20 * time.Millisecond // longest lateness that counts for one timer
)

// Timer adds one timer to the estimate. It fired at now, late after it was due.
func (l *Lateness) Timer(now time.Time, late time.Duration) {
	l.late, l.at = l.Now(now), now
	if more := min(late, latenessMost) - l.late; more > 0 {
		l.late += more / latenessRise
	}
}

// Now returns the estimate.
func (l *Lateness) Now(now time.Time) time.Duration {
	since := max(now.Sub(l.at), 0)
	if l.late == 0 || since >= latenessLife {
		return 0
	}
	return l.late - time.Duration(float64(l.late)*since.Seconds()/latenessLife.Seconds())
}
