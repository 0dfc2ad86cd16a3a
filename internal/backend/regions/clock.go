package regions

import (
	"math"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/region"
)

// clocks are what this replica knows about the clocks of its region's Redis: one, or one for each node of a cluster.
type clocks struct {
	began time.Time // of this replica's monotonic clock

	mu         sync.Mutex
	watches    map[string]*watch
	generation uint64
	ready      bool   // the generation was read since the last step of a clock that was noticed
	setBack    func() // called, with mu held, when a step is noticed
}

// watch is what is known about one clock.
type watch struct {
	region.Watch
	last int64 // what it has shown last
}

// mostClocks bounds the clocks of a cluster whose nodes keep changing.
const mostClocks = 1024

func newClocks(setBack func()) *clocks {
	return &clocks{began: time.Now(), watches: make(map[string]*watch), setBack: setBack}
}

func (c *clocks) elapsed() int64 { return time.Since(c.began).Microseconds() }

// state is what was known when a change was sent.
type state struct {
	least      int64
	generation uint64
}

// reading returns the latest time that a clock is known to have reached. It is not ready before the generation was read, and knows is
// false if the clock was not read since.
//
// A computation uses that time as the present. It is never late: the script that writes the result checks that the clock shows at
// least so much. It is early by half a trip, and by the drift since the last reading.
func (c *clocks) reading(name string) (r region.Reading, knows, ready bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.Generation, r.Least = c.generation, math.MinInt64
	r.Now = r.Least
	if w := c.watches[name]; w != nil {
		r.Least = w.Least(c.elapsed())
		r.Now = max(r.Least, w.last)
	}
	return r, r.Now != math.MinInt64, c.ready
}

// saw takes in a time that a clock has shown. It returns false if the clock was set back since what was known when the change was sent.
func (c *clocks) saw(name string, sent state, shown int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sent.generation != c.generation {
		return true
	}
	if shown < sent.least {
		c.reset()
		c.setBack()
		return false
	}
	w := c.watches[name]
	if w == nil {
		if len(c.watches) >= mostClocks {
			clear(c.watches)
		}
		w = new(watch)
		c.watches[name] = w
	}
	w.Saw(c.elapsed(), shown)
	w.last = shown
	return true
}

// agrees takes in a time that a clock has shown to a take. It returns false if the take may have used what is not valid any more, because
// the clock was set back since it was sent.
func (c *clocks) agrees(name string, sent state, shown int64) bool {
	c.mu.Lock()
	same := sent.generation == c.generation
	c.mu.Unlock()
	return same && c.saw(name, sent, shown)
}

// reset forgets everything until the generation is read again.
func (c *clocks) reset() {
	clear(c.watches)
	c.ready = false
}

// known returns the generation, and whether it is the present one as far as this replica knows.
func (c *clocks) known() (generation uint64, ready bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation, c.ready
}

// read takes in the generation that the Redis has. It reports whether it is another one.
func (c *clocks) read(generation uint64) (other bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other = generation != c.generation; other {
		c.reset()
		c.generation = generation
	}
	c.ready = true
	return other
}
