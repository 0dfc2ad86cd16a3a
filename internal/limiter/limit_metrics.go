package limiter

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/metric"
)

// limitSeries counts hits under one limit of a rule whose limits vary.
type limitSeries struct {
	Domain, Rule, Limit string

	Refused, Passed, Warned atomic.Uint64
}

// limitNames are the series of limits. They are found when a snapshot is made, and their number is bounded.
type limitNames struct {
	max      int
	overflow *limitSeries // counts for limits for which there was no room

	mu     sync.Mutex
	byName map[limitName]*limitSeries
}

type limitName struct{ path, limit string }

// ofRule returns the series of a rule's limits.
func (n *limitNames) ofRule(r *descriptor.Rule) []*limitSeries {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]*limitSeries, len(r.Limits))
	for i := range r.Limits {
		name := limitName{r.Path, r.Limits[i].Name}
		s := n.byName[name]
		switch {
		case s != nil:
		case len(n.byName) >= n.max:
			s = n.overflow
		default:
			if n.byName == nil {
				n.byName = make(map[limitName]*limitSeries)
			}
			s = &limitSeries{Domain: r.Domain, Rule: belowDomain(r), Limit: name.limit}
			n.byName[name] = s
		}
		all[i] = s
	}
	return all
}

// belowDomain is a rule's path without its domain.
func belowDomain(r *descriptor.Rule) string { return r.Path[min(len(r.Domain)+1, len(r.Path)):] }

func (n *limitNames) families() []metric.Family {
	family := func(name, help string, of func(*limitSeries) uint64) metric.Family {
		return metric.Family{Name: name, Help: help, Labels: []string{"domain", "rule", "limit"}, Counts: func(emit metric.Emit) {
			for _, s := range n.all() {
				emit(float64(of(s)), s.Domain, s.Rule, s.Limit)
			}
		}}
	}
	return []metric.Family{
		family("ratelimitd_limit_refused_hits_total", "Hits that a limit refused. Only limits of rules with shadow, enforce_percent, soft or warn_at are counted by limit.",
			func(s *limitSeries) uint64 { return s.Refused.Load() }),
		family("ratelimitd_limit_unenforced_hits_total", "Hits that passed, and would have been refused if the limit were enforced.",
			func(s *limitSeries) uint64 { return s.Passed.Load() }),
		family("ratelimitd_limit_warned_hits_total", "Hits admitted when at least the warn_at share of a limit was in use.",
			func(s *limitSeries) uint64 { return s.Warned.Load() }),
	}
}

// all returns the series, in no order, and the one for limits without room if it has counted anything.
func (n *limitNames) all() []*limitSeries {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Collect(maps.Values(n.byName))
	if s := n.overflow; s.Refused.Load()+s.Passed.Load()+s.Warned.Load() > 0 {
		all = append(all, s)
	}
	return all
}
