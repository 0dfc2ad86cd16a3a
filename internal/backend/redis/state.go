package redis

import (
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A fixed window is one integer in Redis: the window's number modulo windowNumbers, times 2^countBits, plus its count.
// The head of take.lua says more; both sides must agree.
const (
	countBits     = 40
	windowNumbers = 1 << 12
)

// fixedWindowState decodes what the script says it saw at now: nothing, or hits in the window of now or a newer one.
func fixedWindowState(value, now, length int64) backend.State {
	count := value & backend.MaxCount
	if count == 0 {
		return backend.State{}
	}
	current := now / length
	ahead := (value>>countBits - current) & (windowNumbers - 1)
	return backend.State{Start: (current + ahead) * length, Count: count}
}

// supported refuses limits whose counters the script cannot keep.
func supported(l *descriptor.Limit) error {
	switch {
	case l.Algorithm != descriptor.FixedWindow:
		return fmt.Errorf("a limit with algorithm %v cannot be counted in Redis", l.Algorithm)
	case l.FirstHit:
		return fmt.Errorf("windows that start at the first hit cannot be counted in Redis")
	case l.Window.Location != nil:
		return fmt.Errorf("windows of the calendar of %v cannot be counted in Redis", l.Window.Location)
	case l.Window.Length() <= 0:
		return fmt.Errorf("a window of %v cannot be counted in", l.Window.Length())
	}
	return nil
}
