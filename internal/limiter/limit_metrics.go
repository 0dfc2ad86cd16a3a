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

	Denied, Passed, Warned atomic.Uint64
}

// ofLimits returns the series of a rule's limits.
func (m *metrics) ofLimits(r *descriptor.Rule) []*limitSeries {
	all := make([]*limitSeries, len(r.Limits))
	for i := range r.Limits {
		name := r.Limits[i].Name
		id := strconv.Itoa(len(r.Path)) + ":" + r.Path + name // the length keeps two parts apart that may have any bytes
		all[i] = m.limits.Add(id, 1, func(string) *limitSeries {
			return &limitSeries{Domain: r.Domain, Rule: belowDomain(r), Limit: name}
		})
		if all[i] == nil {
			all[i] = m.limits.Other
		}
	}
	return all
}

// belowDomain is a rule's path without its domain.
func belowDomain(r *descriptor.Rule) string { return r.Path[min(len(r.Domain)+1, len(r.Path)):] }

// limitFamily declares the numbers of the limits of rules. A rule with several paths has one series, and no more limits
// than rules may have names in metrics are shown.
func (l *Limiter) limitFamily() metric.Family {
	return metric.Family{
		Name:   "ratelimitd_rule_limit",
		Help:   "Hits that a limit allows per window, without overrides.",
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

// limitHits declares the hits under the limits of such rules.
func (m *metrics) limitHits() metric.Family {
	return metric.Family{
		Name:   "ratelimitd_limit_hits_total",
		Help:   "Hits that one limit denied, let pass unenforced, or warned about.",
		Labels: []string{"domain", "rule", "limit", "result"},
		Counts: func(emit metric.Emit) {
			for _, s := range m.limits.All() {
				denied, passed, warned := s.Denied.Load(), s.Passed.Load(), s.Warned.Load()
				if s == m.limits.Other && denied+passed+warned == 0 {
					continue
				}
				emit(float64(denied), s.Domain, s.Rule, s.Limit, "denied")
				emit(float64(passed), s.Domain, s.Rule, s.Limit, "unenforced")
				emit(float64(warned), s.Domain, s.Rule, s.Limit, "warned")
			}
		},
	}
}
