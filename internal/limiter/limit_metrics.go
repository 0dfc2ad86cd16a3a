package limiter

import (
	"strconv"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// limitSeries counts hits under one limit of a rule whose limits vary.
type limitSeries struct {
	Domain, Rule, Limit string

	Refused, Passed, Warned atomic.Uint64
}

// ofLimits returns the series of a rule's limits.
func (m *metrics) ofLimits(r *descriptor.Rule) []*limitSeries {
	all := make([]*limitSeries, len(r.Limits))
	for i := range r.Limits {
		name := r.Limits[i].Name
		id := strconv.Itoa(len(r.Path)) + ":" + r.Path + name // the length keeps two parts apart that may have any bytes
		all[i] = m.limits.Add(id, 1, func(string) *limitSeries { return &limitSeries{Domain: r.Domain, Rule: belowDomain(r), Limit: name} })
		if all[i] == nil {
			all[i] = m.limits.Other
		}
	}
	return all
}

// belowDomain is a rule's path without its domain.
func belowDomain(r *descriptor.Rule) string { return r.Path[min(len(r.Domain)+1, len(r.Path)):] }

// limitFamily declares the numbers of the limits of rules. A rule with several paths has one series, and no more limits than rules may have names
// in metrics are shown.
func (l *Limiter) limitFamily() metric.Family {
	return metric.Family{
		Name: "ratelimitd_rule_limit", Help: "Hits that a limit of the rule allows per window, without overrides; window: empty for requests in flight.",
		Labels: []string{"domain", "rule", "limit", "window"},
		Levels: func(emit metric.Emit) {
			tree := l.Tree()
			if tree == nil {
				return
			}
			type labels struct{ domain, rule, limit, window string }
			seen := make(map[labels]bool)
			for _, r := range tree.Rules {
				for i := range r.Limits {
					limit := &r.Limits[i]
					of := labels{domain: r.Domain, rule: belowDomain(r), limit: limit.Name}
					if limit.Algorithm != descriptor.Concurrency {
						of.window = limit.Window.Words()
					}
					if seen[of] {
						continue
					}
					if len(seen) == 2*l.parts.MaxSeries {
						return
					}
					seen[of] = true
					emit(float64(limit.Requests), of.domain, of.rule, of.limit, of.window)
				}
			}
		},
	}
}

func (m *metrics) limitFamilies() []metric.Family {
	family := func(name, help string, of func(*limitSeries) uint64) metric.Family {
		return metric.Family{Name: name, Help: help, Labels: []string{"domain", "rule", "limit"}, Counts: func(emit metric.Emit) {
			for _, s := range m.limits.All() {
				if s != m.limits.Other || s.Refused.Load()+s.Passed.Load()+s.Warned.Load() > 0 {
					emit(float64(of(s)), s.Domain, s.Rule, s.Limit)
				}
			}
		}}
	}
	return []metric.Family{
		family("ratelimitd_limit_refused_hits_total", "Hits that this limit denied.",
			func(s *limitSeries) uint64 { return s.Refused.Load() }),
		family("ratelimitd_limit_unenforced_hits_total", "Hits that passed only because this limit is not enforced.",
			func(s *limitSeries) uint64 { return s.Passed.Load() }),
		family("ratelimitd_limit_warned_hits_total", "Hits admitted with at least warn_at percent of the limit in use.",
			func(s *limitSeries) uint64 { return s.Warned.Load() }),
	}
}
