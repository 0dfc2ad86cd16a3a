package simkit

// Clock is the clock of a machine, read at a true time. The zero Clock shows the true time.
type Clock struct {
	since int64 // true time of the last change
	shown int64 // shown time at since
	rate  int64 // how much faster it runs, in parts per million
}

// NewClock returns a clock that shows a time at the true time 0, and runs faster by some parts per million.
func NewClock(shown, rate int64) Clock { return Clock{shown: shown, rate: rate} }

// Read returns the shown time.
func (c *Clock) Read(now int64) int64 {
	d := now - c.since
	return c.shown + d + d*c.rate/1_000_000
}

// Step sets the clock forward, or back.
func (c *Clock) Step(now, by int64) { c.shown, c.since = c.Read(now)+by, now }

// Drift changes how much faster the clock runs from now on.
func (c *Clock) Drift(now, rate int64) { c.shown, c.since, c.rate = c.Read(now), now, rate }
