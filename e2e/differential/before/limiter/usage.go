package limiter

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
)

// recordUsage records the counters of rules with usage. Grouped values are recorded as they count. A counter that the over-limit cache answered for was recorded before.
func (c *calculation) recordUsage(x *usage.Index, now time.Time) {
	for i := range c.request.Takes {
		t, o := &c.request.Takes[i], &c.request.Outcomes[i]
		r := &c.resolved[t.Member]
		if t.Hits <= 0 || o.Failed || !c.counted(t) || r.rule == nil || !r.rule.Usage || o.Cached || o.Used == 0 {
			continue
		}
		moves := time.Duration(0) // a window ends when it ends; other counters end later with each use
		if t.Limit.Algorithm != descriptor.FixedWindow {
			moves = t.Limit.Window.Length()
		}
		x.Record(now, t.Key, c.req.Domain, c.entries(t.Member), o.ResetAfter, moves)
	}
}
