package limiter

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Resolve returns the counter of one limit of a descriptor, with the numbers that hold for its caller. Another region asks for it, whose
// rules may differ. tag is the limit's: descriptor.Limit.Tag. Resolve returns false if no rule matches, or if the rule has no such
// limit.
//
// A limit that an override lifts is found with the rule's numbers: the region that asks would not ask if it knew of the override. One that
// an override blocks is found with the override's.
func (l *Limiter) Resolve(now time.Time, domain string, entries []descriptor.Entry, tag string) (backend.Counter, bool) {
	w, err := l.inquire(now, l.snapshot.Load(), domain, &Descriptor{Entries: entries})
	if err != nil {
		return backend.Counter{}, false
	}
	defer l.release(w)
	s := &w.subjects[0]
	if s.matched == nil || s.rule == nil {
		return backend.Counter{}, false
	}
	for i := range w.chargesOf(s) {
		c := &w.charges[s.first+i]
		if own := &s.rule.Limits[c.index]; own.Tag() == tag {
			limit := *c.limit
			if s.by == byBlock {
				limit.Regions = own.Regions // the limit that blocks has nothing of the rule's
			}
			return backend.Counter{Key: w.Keys.AppendKey(nil, domain, s.counted, s.rule, own), Limit: &limit, Rule: s.rule}, true
		}
	}
	return backend.Counter{}, false
}
