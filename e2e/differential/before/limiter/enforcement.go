package limiter

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A limit of a rule may be enforced for nobody (shadow, soft) or for a share of the callers. It is counted with the limits beside it, but
// without a vote: it counts what they admit, and what it refuses passes. The status, the headers and the reservation of a
// descriptor are those of its enforced limits. If none is enforced for this caller, the descriptor is as in shadow mode.

// enforce finds out which limits are enforced for the callers of this request. It is called only if a rule has other limits.
func (c *calculation) enforce() {
	for i := range c.resolved {
		r := &c.resolved[i]
		if r.rule == nil || !r.rule.Varies || r.own.unlimited {
			continue
		}
		r.lenient = true
		for j := range r.rule.Limits {
			if r.kept != nil && !slices.Contains(r.kept, j) {
				continue
			}
			if c.enforced(i, j) {
				r.lenient = false
			} else {
				r.unenforced |= 1 << j
			}
		}
	}
}

// enforced reports whether a limit of descriptor i's rule is enforced for its caller.
func (c *calculation) enforced(i, j int) bool {
	r := &c.resolved[i]
	if r.own.blocked { // whatever the limit that stands for the block is
		return true
	}
	return c.enforcedFor(r.rule, c.entries(i), j)
}

// enforcedFor reports whether a limit of a rule is enforced for the caller with these entries.
func (c *calculation) enforcedFor(rule *descriptor.Rule, entries []descriptor.Entry, limit int) bool {
	l := &rule.Limits[limit]
	if l.Enforcement != descriptor.EnforcedForSome {
		return l.EnforcedFor(nil)
	}
	c.identity = rule.AppendCaller(c.identity[:0], rule.Domain, entries, limit)
	return l.EnforcedFor(c.identity)
}

// passes reports whether the take at position j of index refuses nothing, and other takes of its descriptor may.
func (r *resolved) passes(j int) bool {
	return r.unenforced != 0 && !r.lenient && r.unenforced>>r.limitAt(j-r.first)&1 != 0
}

// Notice is about a limit that has something to say besides the status of its descriptor.
type Notice struct {
	Kind       NoticeKind
	Descriptor int
	LimitIndex int // in the rule's limits
	Name       string
	Percent    int64 // of what the limit holds: what is in use
}

// NoticeKind is what a notice says.
type NoticeKind uint8

// The kinds. Clients see all but the first.
const (
	NoticeShadow NoticeKind = iota // the limit would have refused the hits
	NoticeSoft                     // the limit is exceeded, and does not refuse
	NoticeWarn                     // so much is in use that the rule asks for a warning
)

// notice fills d.Notices. It is called only if a rule has limits that vary.
func (c *calculation) notice(d *Decision) {
	for i := range c.resolved {
		r := &c.resolved[i]
		if r.rule == nil || !r.rule.Varies || r.hits < 0 || r.settlesEarlier() && c.req.Purpose != Charge {
			continue
		}
		for j := r.first; j < r.end; j++ {
			o := &c.request.Outcomes[c.index[j]]
			n := Notice{Descriptor: i, LimitIndex: r.limitAt(j - r.first)}
			if l := &r.rule.Limits[n.LimitIndex]; !o.Failed && c.says(&n, r, l, o, c.capacity(i, j)) {
				n.Name = l.Name
				d.Notices = append(d.Notices, n)
			}
		}
	}
}

// says fills in what a limit has to say about an outcome, and reports whether there is something.
func (c *calculation) says(n *Notice, r *resolved, l *descriptor.Limit, o *backend.Outcome, capacity uint64) bool {
	loose := r.unenforced>>n.LimitIndex&1 != 0
	if capacity > 0 {
		n.Percent = o.Used * 100 / int64(capacity)
	}
	silent := r.rule.Shadow || loose && l.Enforcement != descriptor.EnforcedSoftly
	switch {
	case !o.Allowed && loose && silent:
		n.Kind = NoticeShadow
		return true
	case !o.Allowed && loose:
		n.Kind = NoticeSoft
		return true
	default:
		n.Kind = NoticeWarn
		return o.Allowed && !silent && warns(l, o, capacity)
	}
}

// warns reports whether so much of a limit is in use that its rule asks for a warning.
func warns(l *descriptor.Limit, o *backend.Outcome, capacity uint64) bool {
	return l.WarnAt > 0 && capacity > 0 && o.Used*100 >= int64(l.WarnAt)*int64(capacity)
}

// maxWarning is the longest warning header, in bytes. Clients and proxies refuse answers with very large headers.
const maxWarning = 1024

// warning returns the notices for clients as a list in the syntax of structured fields: "daily";used=83, "monthly";exceeded. It is
// empty if there are none. Exceeded limits come first, then those of which most is in use. shown are the notices for which there is room.
func (c *calculation) warning(d *Decision) (header string, shown []*Notice) {
	var all []*Notice
	for i := range d.Notices {
		if n := &d.Notices[i]; n.Kind != NoticeShadow {
			all = append(all, n)
		}
	}
	slices.SortStableFunc(all, func(a, b *Notice) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Percent, a.Percent))
	})
	var b []byte
	for i, n := range all {
		end := len(b)
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, draftName(c.noticed(n))...)
		if n.Kind == NoticeSoft {
			b = append(b, ";exceeded"...)
		} else {
			b = strconv.AppendInt(append(b, ";used="...), n.Percent, 10)
		}
		if len(b) > maxWarning {
			return string(b[:end]), all[:i]
		}
	}
	return string(b), all
}

// warnings returns the notices that the header has for the dynamic metadata.
func (c *calculation) warnings(d *Decision) []any {
	var all []any
	_, shown := c.warning(d)
	for _, n := range shown {
		m := map[string]any{"rule": c.resolved[n.Descriptor].rule.Path, "descriptor": n.Descriptor, "used_percent": n.Percent}
		if n.Name != "" {
			m["name"] = n.Name
		}
		if n.Kind == NoticeSoft {
			m["exceeded"] = true
		}
		all = append(all, m)
	}
	return all
}

func (c *calculation) noticed(n *Notice) *descriptor.Limit {
	return &c.resolved[n.Descriptor].rule.Limits[n.LimitIndex]
}
