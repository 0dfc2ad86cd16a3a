package limiter

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Resolve returns the counter of one limit of a descriptor, with the numbers for its customer. It answers another
// region, whose rules may differ. tag is the limit's descriptor.Rule.Tag. Resolve returns false if no rule matches, or
// if the rule has no such limit.
func (l *Limiter) Resolve(now time.Time, domain string, entries []descriptor.Entry,
	tag string) (found backend.Resolved, ok bool) {
	w, err := l.inquire(now, l.snapshot.Load(), domain, &Descriptor{Entries: entries})
	if err != nil {
		return found, false
	}
	defer l.release(w)
	s := &w.subjects[0]
	if s.matched == nil {
		return found, false
	}
	for i := range s.matched.Limits {
		c, own := &w.charges[s.first+i], &s.matched.Limits[i]
		if s.matched.Tag(own) != tag {
			continue
		}
		limit, keyed := *c.limit, own
		if found.Seen = &limit; s.by == byBlock { // the limit that blocks has nothing of the rule's
			limit.Regions, keyed, found.Seen = own.Regions, c.limit, own
		}
		found.Key, found.Limit, found.Rule = w.Keys.AppendKey(nil, domain, s.counted, s.matched, keyed), &limit, s.matched
		found.Free = c.state.away()
		found.RefundsDenied = w.domain.Refunds == descriptor.RefundsDeny
		return found, true
	}
	return found, false
}

// ruling caches the result of Sums for a snapshot, for a limited time.
type ruling struct {
	of          *snapshot
	from, until int64 // seconds since the Unix epoch
	sum         uint64
}

// Sums returns checksums of the inputs of Resolve, except the time: all covers the rules, the overrides, and which of
// these are active; rules covers the rules alone. Replicas with the same inputs return the same sums. They are 0
// without rules.
func (l *Limiter) Sums(now time.Time) (all, rules uint64) {
	snap, at := l.snapshot.Load(), now.Unix()
	if snap == nil {
		return 0, 0
	}
	if r := l.ruling.Load(); r != nil && r.of == snap && r.from <= at && at < r.until {
		return r.sum, snap.tree.Checksum
	}
	r := &ruling{of: snap}
	r.from, r.until = snap.overrides.Span(at)
	for _, n := range [...]uint64{snap.tree.Checksum, snap.overrides.Sum(), uint64(r.from)} {
		r.sum = (r.sum ^ n) * 0x9e3779b97f4a7c15
		r.sum ^= r.sum >> 32
	}
	r.sum |= 1 // not 0
	l.ruling.Store(r)
	return r.sum, snap.tree.Checksum
}
