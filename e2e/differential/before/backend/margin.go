package backend

import "time"

// Margin returns how long before its deadline a call stops waiting for a store, so that an answer by on_error still arrives in time:
// 3 ms, or a fifth of the time left if that is less.
func Margin(left time.Duration) time.Duration {
	return min(3*time.Millisecond, left/5)
}
