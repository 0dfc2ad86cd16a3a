package limiter

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// calculation is the working memory of one decision. It is reused.
type calculation struct {
	settings *Settings
	shares   [][]descriptor.Limit // by Rule.Index: this process' part of each limit; nil if it is the only one
	req      *Request
	domain   *descriptor.Domain // nil if no rules name it

	resolved []resolved // by descriptor
	index    []int      // the takes of all descriptors, one after the other, as places in request.Takes
	request  backend.Request
	keys     []byte // the keys of all takes, one after the other
	lane     uint32 // of hot keys; a call keeps its own
	name     []byte // scratch for the names of metrics

	local backend.SubRequest // what on_error has this process count
}

// resolved is what one descriptor comes down to.
type resolved struct {
	rule     *descriptor.Rule // nil: none matched, an override stands in for it, or another rule replaced it
	override bool
	limit    descriptor.Limit // of the override
	share    descriptor.Limit // this process' part of it

	degraded descriptor.OnError // how the answer came about without the backend

	hits  int64
	kept  []int // the places of the rule's limits that no other rule replaces; nil: all
	first int   // the takes of this descriptor are calculation.index[first:end]
	end   int

	deciding int // the take that its status is about, as a place in calculation.index; found when it is judged
}

func (r *resolved) shadow() bool { return r.rule != nil && r.rule.Shadow }

// longestOverride is the longest window that a request may ask for: as long as a rule's may be.
const longestOverride = 90 * 365 * 24 * time.Hour

func validate(req *Request) error {
	if req.Domain == "" {
		return invalid("domain", "rate limit domain must not be empty")
	}
	if len(req.Descriptors) == 0 {
		return invalid("descriptors", "rate limit descriptor list must not be empty")
	}
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		if !d.HasOverride {
			continue
		}
		if d.Override.Unit < 0 || d.Override.Unit > math.MaxUint8 || !descriptor.Unit(d.Override.Unit).Valid() {
			field := fmt.Sprintf("descriptors[%d].limit.unit", i)
			return invalid(field, "%s is %d, which is no unit of time: use SECOND (1) to WEEK (7)", field, d.Override.Unit)
		}
		if int64(d.Override.Multiplier) > int64(longestOverride/descriptor.Unit(d.Override.Unit).Length()) {
			field := fmt.Sprintf("descriptors[%d].limit.unit_multiplier", i)
			return invalid(field, "%s is %d, which makes a window of more than 90 years", field, d.Override.Multiplier)
		}
	}
	return nil
}

// resolve matches every descriptor, applies overrides, and takes out what a matched rule replaces. Where matching may take
// long, it stops when the caller has left.
func (c *calculation) resolve(ctx context.Context) error {
	replaces := false
	slow := c.domain != nil && c.domain.HasPatterns()
	for i := range c.req.Descriptors {
		if slow && i > 0 && ctx.Err() != nil {
			return fmt.Errorf("match descriptors: %w", ctx.Err())
		}
		d := &c.req.Descriptors[i]
		r := resolved{hits: hits(c.req, d)}
		switch {
		case c.domain == nil:
		case d.HasOverride:
			r.override = true
			r.limit = d.Override.limit(c.settings)
		default:
			r.rule = c.domain.Match(d.Entries)
			replaces = replaces || r.rule != nil && len(r.rule.Replaces) > 0
		}
		c.resolved = append(c.resolved, r)
	}
	if replaces {
		c.replace()
	}
	return nil
}

func (o *Override) limit(s *Settings) descriptor.Limit {
	l := descriptor.Limit{Requests: o.Requests, Window: descriptor.Window{Unit: descriptor.Unit(o.Unit), Multiplier: o.Multiplier}}
	if s.CalendarMonths {
		l.Window.CalendarMonth()
	}
	return l
}

// replace takes the limits out whose names other matched rules replace. All replacing rules count, also those that are
// replaced themselves. An unlimited rule is not replaced.
func (c *calculation) replace() {
	var names []string
	for i := range c.resolved {
		if r := c.resolved[i].rule; r != nil {
			names = append(names, r.Replaces...)
		}
	}
	for i := range c.resolved {
		if r := &c.resolved[i]; r.rule != nil && !r.rule.Unlimited {
			r.leaveOut(names)
		}
	}
}

// leaveOut takes the limits of these names out, and the rule if none is left.
func (r *resolved) leaveOut(names []string) {
	var kept []int
	for j := range r.rule.Limits {
		if name := r.rule.Limits[j].Name; name == "" || !slices.Contains(names, name) {
			kept = append(kept, j)
		}
	}
	switch len(kept) {
	case len(r.rule.Limits):
	case 0:
		r.rule = nil
	default:
		r.kept = kept
	}
}

// limitAt is the place in the rule's limits of the descriptor's n-th take.
func (r *resolved) limitAt(n int) int {
	if r.kept != nil {
		return r.kept[n]
	}
	return n
}

// hits is what a descriptor adds: its own number if it has one, else the request's, which is 1 if absent. Numbers
// beyond any limit are clamped, so that no sum of them overflows.
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
