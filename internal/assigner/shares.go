package assigner

import (
	"cmp"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/quota"
)

// BucketShares says who holds what of one bucket, for operators.
type BucketShares struct {
	Domain  string
	Entries []descriptor.Entry // of the bucket's id, in the order in which they are matched
	Rule    string             // empty: no rule matches
	Limit   string             // the limits in words; empty: there is none
	Rate    quota.Rate         // of the whole limit

	ProcessRate, ProcessBurst float64 // the part of this process
	Processes                 int     // that share the limit

	Held []HeldShare // by this process' clients: those that hold most first
}

// HeldShare is what one client holds.
type HeldShare struct {
	Client     string // its address
	Since      time.Time
	Demand     float64 // requests per second
	Assignment quota.Assignment
	Expires    time.Time
}

// Shares returns who holds what in a domain: the buckets with most demand first, at most n of them, and how many there are.
func (a *Assigner) Shares(_ time.Time, domain string, n int) (all []BucketShares, total int) {
	type ranked struct {
		b      *bucket
		demand float64
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var some []ranked
	for _, b := range a.buckets {
		if b.domain != domain || b.pool == nil || len(b.subscriptions) == 0 {
			continue
		}
		r := ranked{b: b}
		for _, s := range b.subscriptions {
			if s.member != nil {
				r.demand += s.member.Demand
			}
		}
		some = append(some, r)
	}
	slices.SortFunc(some, func(x, y ranked) int {
		return cmp.Or(cmp.Compare(y.demand, x.demand), cmp.Compare(x.b.key, y.b.key))
	})
	for i := range some[:min(n, len(some))] {
		all = append(all, some[i].b.shares())
	}
	return all, len(some)
}

func (b *bucket) shares() BucketShares {
	p := b.pool
	x := BucketShares{Domain: b.domain, Entries: b.entries, Limit: p.limits}
	if p.rule != nil {
		x.Rule = p.rule.Path
	}
	if p.rated {
		share := p.planner.Share()
		x.Rate, x.ProcessRate, x.ProcessBurst, x.Processes = p.planner.Rate(), share.Rate, share.Burst, share.Processes
	}
	for _, s := range b.subscriptions {
		if m := s.member; m != nil {
			x.Held = append(x.Held, HeldShare{Client: s.stream.client, Since: m.Since, Demand: m.Demand, Assignment: m.Held, Expires: m.Expires()})
		}
	}
	slices.SortFunc(x.Held, func(p, q HeldShare) int {
		return cmp.Or(cmp.Compare(q.Assignment.Rate(), p.Assignment.Rate()), cmp.Compare(p.Client, q.Client), p.Since.Compare(q.Since))
	})
	return x
}
