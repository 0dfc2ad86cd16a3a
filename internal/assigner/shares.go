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

// copiedAtOnce is how many buckets are copied before assignments go on.
const copiedAtOnce = 100

// Shares returns who holds what in a domain: the buckets with most demand first, at most n of them, and how many there are. It holds up
// assignments only while it looks through the buckets and copies a few of them, not while it sorts.
func (a *Assigner) Shares(_ time.Time, domain string, n int) (all []BucketShares, total int) {
	some := a.ranked(domain)
	slices.SortFunc(some, func(x, y rankedBucket) int {
		return cmp.Or(cmp.Compare(y.demand, x.demand), cmp.Compare(x.b.key, y.b.key))
	})
	for part := range slices.Chunk(some[:min(n, len(some))], copiedAtOnce) {
		all = a.appendShares(all, part)
	}
	for _, x := range all {
		slices.SortFunc(x.Held, func(p, q HeldShare) int {
			return cmp.Or(cmp.Compare(q.Assignment.Rate(), p.Assignment.Rate()), cmp.Compare(p.Client, q.Client), p.Since.Compare(q.Since))
		})
	}
	return all, len(some)
}

type rankedBucket struct {
	b      *bucket
	demand float64
}

// ranked returns the buckets of a domain that clients have, with their demand.
func (a *Assigner) ranked(domain string) (some []rankedBucket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.buckets {
		if b.domain != domain || b.pool == nil || len(b.subscriptions) == 0 {
			continue
		}
		r := rankedBucket{b: b}
		for _, s := range b.subscriptions {
			if s.member != nil {
				r.demand += s.member.Demand
			}
		}
		some = append(some, r)
	}
	return some
}

// appendShares copies the shares of some buckets, except those that clients have left meanwhile.
func (a *Assigner) appendShares(all []BucketShares, some []rankedBucket) []BucketShares {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range some {
		if b := some[i].b; b.pool != nil && len(b.subscriptions) > 0 {
			all = append(all, b.shares())
		}
	}
	return all
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
	return x
}
