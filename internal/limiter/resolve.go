package limiter

import (
	"fmt"
	"math"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// call is the working memory of one decision. It is reused.
type call struct {
	settings *Settings
	req      *Request
	domain   *descriptor.Domain // nil if no rules name it

	resolved []resolved // by descriptor
	index    []int      // the takes of all descriptors, one after the other, as places in request.Takes
	request  backend.Request
	keys     []byte // the keys of all takes, one after the other
	name     []byte // scratch for the names of metrics
}

// resolved is what one descriptor comes down to.
type resolved struct {
	rule     *descriptor.Rule // nil: none matched, an override stands in for it, or another rule replaced it
	override bool
	limit    descriptor.Limit // of the override

	hits  int64
	first int // the takes of this descriptor are call.index[first:end]
	end   int
}

func (r *resolved) shadow() bool { return r.rule != nil && r.rule.Shadow }

func validate(req *Request) error {
	if req.Domain == "" {
		return fmt.Errorf("%w: rate limit domain must not be empty", ErrInvalid)
	}
	if len(req.Descriptors) == 0 {
		return fmt.Errorf("%w: rate limit descriptor list must not be empty", ErrInvalid)
	}
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		if d.HasOverride && (d.Override.Unit < 0 || d.Override.Unit > math.MaxUint8 || !descriptor.Unit(d.Override.Unit).Valid()) {
			return fmt.Errorf("%w: descriptors[%d].limit.unit is %d, which is no unit of time: use SECOND (1) to WEEK (7)", ErrInvalid, i, d.Override.Unit)
		}
	}
	return nil
}

// resolve matches every descriptor, applies overrides, and takes out what a matched rule replaces.
func (c *call) resolve() {
	replaces := false
	for i := range c.req.Descriptors {
		d := &c.req.Descriptors[i]
		r := resolved{hits: hits(c.req, d)}
		switch {
		case c.domain == nil:
		case d.HasOverride:
			r.override = true
			r.limit = descriptor.Limit{Requests: d.Override.Requests, Window: descriptor.Window{Unit: descriptor.Unit(d.Override.Unit)}}
		default:
			r.rule = c.domain.Match(d.Entries)
			replaces = replaces || r.rule != nil && len(r.rule.Replaces) > 0
		}
		c.resolved = append(c.resolved, r)
	}
	if replaces {
		c.replace()
	}
}

// replace takes the rules out whose names other matched rules replace. All replacing rules count, also those that are
// replaced themselves. An unlimited rule is not replaced.
func (c *call) replace() {
	var names []string
	for i := range c.resolved {
		if r := c.resolved[i].rule; r != nil {
			names = append(names, r.Replaces...)
		}
	}
	for i := range c.resolved {
		r := c.resolved[i].rule
		if r == nil || r.Unlimited || r.Name == "" {
			continue
		}
		for _, name := range names {
			if name == r.Name {
				c.resolved[i].rule = nil
			}
		}
	}
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
