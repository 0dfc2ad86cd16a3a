package limiter

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// calculation is the working memory of one decision. It is reused by later decisions.
type calculation struct {
	snapshot *snapshot
	settings *Settings
	shares   [][]descriptor.Limit // by Rule.Index: this process' share of each limit; nil if it is the only process
	req      *Request
	domain   *descriptor.Domain // nil if the domain has no rules

	resolved  []resolved         // by descriptor
	limits    []descriptor.Limit // of rules with an override or a scale: the rule's limits with its numbers; complete before prepare
	kept      []int              // the memory of resolved.kept of rules with an override, or with limits that do not apply now
	grouped   []descriptor.Entry // the memory of resolved.counted
	index     []int              // the takes of all descriptors, one after the other, as indexes in request.Takes
	request   backend.Request
	keys      []byte   // the keys of all takes, one after the other
	varies    bool     // a rule has limits that vary
	guarded   bool     // a take is of a penalty
	scheduled bool     // a rule has limits that apply only at some times
	shortened []spans  // by position in index, if scheduled: what callers see in place of the outcomes' times
	replaced  []string // the names of limits that matched rules replace
	denied    int      // refunds that the domain does not allow
	unusable  int      // overrides that the rules do not allow any more
	unscaled  [descriptor.ScaleResults]int
	identity  []byte // scratch for looking up overrides
	lane      uint32 // the lane in the hot key tracker; each calculation keeps its own
	name      []byte // scratch for the names of metrics
	text      []byte // the values of the headers that the domain defines, one after the other
	ends      []int  // where each of them ends

	// A hash table of the request's takes, if it is one atomic step with many: indexes in request.Takes plus one; 0: free.
	table  []int32
	hashed int // how many takes are in the table
	seed   maphash.Seed

	holding bool           // a descriptor is a step of a reservation
	holds   []backend.Hold // of the takes, which point here
	sharers []int64        // by take: the descriptors that it reserves for; empty if reservations are all or nothing
	named   []Hold         // of the descriptors whose last entry names a reservation

	caller []descriptor.Entry // the entries of a plain decision

	local backend.SubRequest // the takes that this process counts because of on_error: local

	// Of a decision that Start has begun.
	ctx      context.Context
	now      time.Time
	decision *Decision
	done     func(error)
	resume   func(error) // called with the answer of the store; made once
}

// resolved is one descriptor with its rule or its own limit, and its takes.
type resolved struct {
	rule     *descriptor.Rule // nil: no rule matched, the request brings a limit along, or another rule replaced it
	ownLimit bool             // the request brings the limit along
	limit    descriptor.Limit // of the request
	share    descriptor.Limit // this process' share of it

	degraded descriptor.OnError // how on_error answered without the backend

	hits    int64
	counted []descriptor.Entry // the entries with the values that count, if the rule groups values; nil: those that were sent
	names   *descriptor.Rule   // the rule, if the last entry names a reservation; the other entries are the descriptor's
	hold    *Hold              // the descriptor is a step of a reservation
	own     ownNumbers         // of a rule with an override
	kept    []int              // the indexes of the rule's limits that apply now, no other rule replaces, and no override lifts; nil: all
	first   int                // this descriptor's takes are calculation.index[first:end]
	end     int

	unenforced uint16 // by index in the rule's limits: not enforced for this caller
	lenient    bool   // none of them is enforced for this caller

	deciding int // the take that its status describes, as a position in calculation.index; set by judge
}

// unlimited reports whether every request passes: the rule says so, or an override lifts its limits.
func (r *resolved) unlimited() bool { return r.rule != nil && r.rule.Unlimited || r.own.unlimited }

// shadow reports whether nothing of the descriptor is enforced.
func (r *resolved) shadow() bool { return r.lenient || r.rule != nil && r.rule.Shadow }

// longestWindow is the longest window of a request's limit. Rules have the same maximum.
const longestWindow = 90 * 365 * 24 * time.Hour

func validate(req *Request) error {
	if req.Domain == "" {
		return invalid("domain", "rate limit domain must not be empty")
	}
	if len(req.Descriptors) == 0 {
		return invalid("descriptors", "rate limit descriptor list must not be empty")
	}
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		if !d.HasLimit {
			continue
		}
		if d.Limit.Unit < 0 || d.Limit.Unit > math.MaxUint8 || !descriptor.Unit(d.Limit.Unit).OnWire() {
			field := fmt.Sprintf("descriptors[%d].limit.unit", i)
			return invalid(field, "%s is %d, which is no unit of time: use SECOND (1) to WEEK (7)", field, d.Limit.Unit)
		}
		if int64(d.Limit.Multiplier) > int64(longestWindow/descriptor.Unit(d.Limit.Unit).Length()) {
			field := fmt.Sprintf("descriptors[%d].limit.unit_multiplier", i)
			return invalid(field, "%s is %d, which makes a window of more than 90 years", field, d.Limit.Multiplier)
		}
	}
	return nil
}

// resolve matches every descriptor, applies the requests' own limits, removes the limits that matched rules replace, and
// applies operators' overrides. If matching may take long, it stops when ctx ends.
func (c *calculation) resolve(ctx context.Context, now time.Time) error {
	replaces, named, weighed, overridable := false, false, false, c.domain != nil && c.domain.Overridable && c.snapshot.overrides.Len() > 0
	honours := c.domain != nil && c.domain.RequestOverride <= descriptor.RequestHonour && !overridable
	slow := c.domain != nil && c.domain.HasPatterns()
	for i := range c.req.Descriptors {
		if slow && i > 0 && ctx.Err() != nil {
			return fmt.Errorf("match descriptors: %w", ctx.Err())
		}
		d := &c.req.Descriptors[i]
		r := resolved{hits: hits(c.req, d)}
		weighed = weighed || len(d.Amounts) > 0
		if c.domain != nil && c.domain.Reservable {
			r.names = c.domain.MatchNamed(d.Entries)
			named = named || r.names != nil
		}
		entries := d.Entries
		if r.names != nil {
			if entries[len(entries)-1].Key == descriptor.CommitID {
				r.hits = max(r.hits, 0)
			}
			entries = entries[:len(entries)-1]
		}
		if r.hits < 0 && c.domain != nil && c.domain.Refunds == descriptor.RefundsDeny {
			r.hits = 0
			c.denied++
		}
		switch {
		case c.domain == nil:
		case d.HasLimit && honours:
			r.ownLimit = true
			r.limit = d.Limit.limit(c.settings)
		default:
			if r.rule = r.names; r.rule == nil {
				r.rule = c.domain.Match(entries)
			}
			if r.rule != nil && r.rule.Scheduled() {
				c.scheduled = true
				c.leaveOutInactive(&r, now)
			}
			if d.HasLimit && c.prefersRequest(r.rule, d, entries, now) {
				r.rule, r.ownLimit = nil, true
				r.limit = d.Limit.limit(c.settings)
			}
			if r.rule != nil {
				replaces = replaces || len(r.rule.Replaces) > 0
				c.varies = c.varies || r.rule.Varies
				if r.rule.Grouped() {
					first := len(c.grouped)
					c.grouped = r.rule.AppendCounted(c.grouped, entries)
					r.counted = c.grouped[first:len(c.grouped):len(c.grouped)]
				}
				if r.rule.ByEntry != nil {
					c.byEntry(&r, entries)
				}
			}
		}
		c.resolved = append(c.resolved, r)
	}
	if replaces {
		c.replace()
	}
	if overridable {
		c.override(now)
	}
	if c.varies {
		c.enforce()
	}
	if named {
		c.holdNamed()
	}
	if weighed {
		if err := c.units(); err != nil {
			return err
		}
	}
	if c.req.Hold != nil {
		return c.hold()
	}
	return nil
}

func (o *RequestLimit) limit(s *Settings) descriptor.Limit {
	l := descriptor.Limit{Requests: uint64(o.Requests), Window: descriptor.Window{Unit: descriptor.Unit(o.Unit), Multiplier: o.Multiplier}}
	if s.CalendarMonths {
		l.Window.CalendarMonth()
	}
	return l
}

// replace removes the limits whose names matched rules replace. A rule replaces others even if it is itself replaced.
// An unlimited rule is not replaced.
func (c *calculation) replace() {
	for i := range c.resolved {
		r := c.resolved[i].rule
		if r == nil {
			continue
		}
		for _, name := range r.Replaces { // many descriptors may match one rule: each name once
			if !slices.Contains(c.replaced, name) {
				c.replaced = append(c.replaced, name)
			}
		}
	}
	for i := range c.resolved {
		if r := &c.resolved[i]; r.rule != nil && !r.rule.Unlimited {
			r.leaveOut(c.replaced)
		}
	}
}

// leaveOut removes the limits with these names, and the rule if no limit is left.
func (r *resolved) leaveOut(names []string) {
	var kept []int
	before := len(r.rule.Limits)
	if r.kept != nil {
		before = len(r.kept)
	}
	for n := range before {
		j := r.limitAt(n)
		if name := r.rule.Limits[j].Name; name == "" || !slices.Contains(names, name) {
			kept = append(kept, j)
		}
	}
	switch len(kept) {
	case before:
	case 0:
		r.rule = nil
	default:
		r.kept = kept
	}
}

// leaveOutInactive removes the limits that do not apply now, and the rule if no limit is left.
func (c *calculation) leaveOutInactive(r *resolved, now time.Time) {
	first := len(c.kept)
	for j := range r.rule.Limits {
		if r.rule.ActiveAt(j, now) {
			c.kept = append(c.kept, j)
		}
	}
	switch len(c.kept) - first {
	case len(r.rule.Limits):
	case 0:
		r.rule = nil
	default:
		r.kept = c.kept[first:len(c.kept):len(c.kept)]
	}
}

// limitAt returns the index in the rule's limits for the descriptor's n-th take.
func (r *resolved) limitAt(n int) int {
	if r.kept != nil {
		return r.kept[n]
	}
	return n
}

// hits returns the number of hits that a descriptor adds: its own number if it has one, else the request's, which is 1 if
// absent. Very large numbers are clamped, so that no sum of them overflows.
func hits(req *Request, d *Descriptor) int64 {
	n := int64(max(req.Hits, 1))
	if d.HasHits {
		n = int64(min(d.Hits, backend.MaxHits))
	}
	if d.Refund {
		return -n
	}
	return n
}
