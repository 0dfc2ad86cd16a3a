package limiter

import (
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Resolve returns the counter of one limit of a descriptor, with the numbers that hold for its caller. Another region asks for it, whose
// rules may differ. tag is the limit's: descriptor.Rule.Tag. Resolve returns false if no rule matches, or if the rule has no such
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
	for i := range w.ruleCharges(s) {
		c := &w.charges[s.first+i]
		if own := &s.rule.Limits[c.index]; s.rule.Tag(own) == tag {
			limit := *c.limit
			if s.by == byBlock {
				limit.Regions = own.Regions // the limit that blocks has nothing of the rule's
			}
			return backend.Counter{Key: w.Keys.AppendKey(nil, domain, s.counted, s.rule, own), Limit: &limit, Rule: s.rule}, true
		}
	}
	return backend.Counter{}, false
}

// ruling is what Rules returns for a snapshot, for some time.
type ruling struct {
	of          *snapshot
	from, until int64 // seconds since the Unix epoch
	rules       uint64
}

// Rules returns a number that stands for all that Resolve depends on: the rules, the overrides, and which of these are active.
// Replicas with the same ones return the same. 0: there are no rules, or one that counts across regions has active times.
func (l *Limiter) Rules(now time.Time) uint64 {
	snap, at := l.snapshot.Load(), now.Unix()
	if snap == nil {
		return 0
	}
	if r := l.ruling.Load(); r != nil && r.of == snap && r.from <= at && at < r.until {
		return r.rules
	}
	r := &ruling{of: snap}
	r.from, r.until = snap.overrides.Span(at)
	timed := slices.ContainsFunc(snap.tree.Rules, func(rule *descriptor.Rule) bool {
		return rule.Scheduled() && slices.ContainsFunc(rule.Limits, func(l descriptor.Limit) bool { return l.Regions != nil })
	})
	if !timed {
		for _, n := range [...]uint64{snap.tree.Checksum, snap.overrides.Sum(), uint64(r.from)} {
			r.rules = (r.rules ^ n) * 0x9e3779b97f4a7c15
			r.rules ^= r.rules >> 32
		}
		r.rules |= 1 // not 0
	}
	l.ruling.Store(r)
	return r.rules
}
