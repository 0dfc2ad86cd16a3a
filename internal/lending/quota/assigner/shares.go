package assigner

import (
	"cmp"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// BucketShares lists the holders of one bucket, for operators.
type BucketShares struct {
	Domain  string
	Entries []descriptor.Entry // the bucket's id, in the order in which rules match it
	Rule    string             // empty if no rule matches
	Limit   string             // the limits in words; empty without limits
	Rate    quota.Rate         // rate of the whole limit

	ReplicaRate, ReplicaBurst float64 // this replica's part
	Replicas                  int     // replicas that share the limit

	Held []HeldShare // this replica's clients, highest rate first
}

// HeldShare is the assignment of one client.
type HeldShare struct {
	Client     string // its address
	Since      time.Time
	Demand     float64 // requests per second
	Assignment quota.Assignment
	Expires    time.Time
}

const (
	copiedAtOnce = 100  // buckets copied before assignments may continue
	rankedAtOnce = 1000 // buckets whose demand is read before assignments may continue
)

// Shares returns the clients and their assignments in a domain. It returns at most n buckets whose ids contain all
// entries of where, those with the highest demand first. It also returns how many such buckets there are, and how many
// buckets the domain has. Assignments wait while Shares lists the buckets, and then only while it reads a few buckets
// at a time.
func (a *Assigner) Shares(_ time.Time, domain string, where []descriptor.Entry,
	n int) (all []BucketShares, matching, total int) {
	some := a.list(domain)
	for part := range slices.Chunk(some, rankedAtOnce) {
		for i := range part {
			part[i].matches = hasAll(part[i].b.id, where)
		}
		a.rank(part)
	}
	used := slices.DeleteFunc(some, func(x rankedBucket) bool { return !x.used })
	total = len(used)
	found := slices.DeleteFunc(used, func(x rankedBucket) bool { return !x.matches })
	slices.SortFunc(found, func(x, y rankedBucket) int {
		return cmp.Or(cmp.Compare(y.demand, x.demand), cmp.Compare(x.b.key, y.b.key))
	})
	for part := range slices.Chunk(found[:min(n, len(found))], copiedAtOnce) {
		all = a.appendShares(all, part)
	}
	for _, x := range all {
		slices.SortFunc(x.Held, func(p, q HeldShare) int {
			return cmp.Or(cmp.Compare(q.Assignment.Rate(), p.Assignment.Rate()), cmp.Compare(p.Client, q.Client),
				p.Since.Compare(q.Since))
		})
	}
	return all, len(found), total
}

// Buckets returns the number of buckets in all domains.
func (a *Assigner) Buckets() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.buckets)
}

// hasAll reports whether entries has each of where.
func hasAll(entries, where []descriptor.Entry) bool {
	return !slices.ContainsFunc(where, func(e descriptor.Entry) bool { return !slices.Contains(entries, e) })
}

type rankedBucket struct {
	b       *bucket
	matches bool
	used    bool    // clients use it
	demand  float64 // set if it is used and matches
}

// list returns the buckets of a domain. A bucket's domain never changes, so it is compared without the lock.
func (a *Assigner) list(domain string) []rankedBucket {
	a.mu.Lock()
	some := make([]rankedBucket, 0, len(a.buckets))
	for _, b := range a.buckets {
		some = append(some, rankedBucket{b: b})
	}
	a.mu.Unlock()
	return slices.DeleteFunc(some, func(x rankedBucket) bool { return x.b.domain != domain })
}

// rank finds the buckets that clients use, and reads the demand of those that match.
func (a *Assigner) rank(some []rankedBucket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range some {
		x := &some[i]
		x.used = x.b.pool != nil && len(x.b.subscriptions) > 0
		if !x.used || !x.matches {
			continue
		}
		for _, s := range x.b.subscriptions {
			if s.member != nil {
				x.demand += s.member.Demand
			}
		}
	}
}

// appendShares copies the shares of some buckets, except those that all clients have left since.
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
	x := BucketShares{Domain: b.domain, Entries: b.entries, Limit: b.terms.limits()}
	if b.terms.rule != nil {
		x.Rule = b.terms.rule.Path
	}
	if p.rated {
		share := p.planner.Share()
		x.Rate, x.ReplicaRate, x.ReplicaBurst, x.Replicas = p.planner.Rate(), share.Rate, share.Burst, share.Replicas
	}
	for _, s := range b.subscriptions {
		if m := s.member; m != nil {
			x.Held = append(x.Held, HeldShare{Client: s.stream.client, Since: m.Since, Demand: m.Demand, Assignment: m.Held,
				Expires: m.Expires()})
		}
	}
	return x
}
