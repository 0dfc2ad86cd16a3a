package limiter

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Parts of a series that are exported even while they are zero.
const (
	alwaysRule      = 1 << iota // all that every rule has, so that its first hit shows as an increase
	alwaysPenalties             // the penalties, because a limit of the rule has one
)

// series counts the hits that were decided under one name: a rule's path, or a name made from a request's values
// (detailed_metric, value_to_metric, requests' own limits).
type series struct {
	Domain string
	Rule   string // the path below the domain
	below  bool   // the name has a part below the domain; Rule may still be empty: a request's own limit without entries

	// always tells which counters are exported even while they are zero: alwaysRule, alwaysPenalties. Bits take less
	// memory than two booleans, and there may be very many rules.
	always atomic.Uint32

	Total, Over, Near, Within, Shadow, Cached atomic.Uint64 // hits under limits

	Penalties atomic.Uint64 // number of penalties started

	Unlimited atomic.Uint64 // hits under an unlimited rule; no other counter includes them

	dotless string // its name with Options.NoDots
	// the prefix of its names in envoyproxy/ratelimit's statistics; nil until it is first used
	reference atomic.Pointer[string]
}

// newSeries returns the series of a name, whose first domainLen bytes are the domain.
func newSeries(name string, domainLen int) *series {
	return &series{Domain: name[:domainLen], Rule: name[min(domainLen+1, len(name)):], below: len(name) > domainLen}
}

func withoutDots(s string) string { return strings.ReplaceAll(s, ".", "_") }

// names are series by name.
type names = metric.Names[series]

const overflow = "overflow"

func newNames(most int, others string) *names {
	return metric.NewNames(most, others, newSeries(others, len(overflow)))
}

// allNames are the series by name.
type allNames struct {
	noDots         bool   // Options.NoDots
	named          *names // keyed by "domain.rule"
	unknownDomains *names // keyed by domain without rules; Total counts the requests' descriptors
	unmatched      *names // keyed by domain; Total counts requests for which the domain has no rule
}

// metrics are the counters of rules and of decisions. Each rule's series is found when a snapshot is made. Only names
// that depend on a request are looked up while deciding, and their number is bounded.
type metrics struct {
	allNames
	withinRules

	decisions    [3]atomic.Uint64 // indexed by Code
	shadowed     atomic.Uint64    // decisions that only the global shadow mode let through
	unknown      atomic.Uint64    // requests whose domain has no rules
	invalid      atomic.Uint64    // requests that are invalid, independent of the backend's answer
	failed       failed
	overridden   atomic.Uint64                // descriptors decided with an operator's override
	unusable     atomic.Uint64                // overrides that were looked up, and that their rule does not allow any more
	refunds      [refundReasons]atomic.Uint64 // dropped
	unscaled     [descriptor.ScaleResults]atomic.Uint64
	reservations [reservationResults]atomic.Uint64
	swallowed    atomic.Uint64 // how often an overflow series was counted up
}

// withinRules are series of parts of rules.
type withinRules struct {
	limits  *metric.Names[limitSeries] // series of limits that vary
	classes *metric.Names[classSeries] // series of limits that classes share
}

// failed counts requests that the backend could not answer.
type failed struct {
	requests    atomic.Uint64
	answered    atomic.Uint64    // requests answered by on_error
	descriptors [5]atomic.Uint64 // descriptors answered by on_error, indexed by descriptor.OnError
}

// The results of reservations in metrics.
const (
	reservationReserved = iota
	reservationDenied
	reservationTooMany
	reservationTooLarge
	reservationCommitted
	reservationProgress
	reservationCancelled
	reservationExtended
	reservationUnknown
	reservationLate
	reservationResults
)

var reservationNames = [reservationResults]string{"reserved", "denied", "too_many", "too_large", "committed",
	"progress", "cancelled", "extended", "unknown", "late"}

// Why a refund is dropped.
const (
	refundTooLarge = iota
	refundDenied
	refundReasons
)

var refundNames = [refundReasons]string{"too_large", "denied"}

func newMetrics(maxSeries int, noDots bool) *metrics {
	return &metrics{
		allNames: allNames{
			noDots:         noDots,
			named:          newNames(maxSeries, overflow+"."+overflow),
			unknownDomains: newNames(max(maxSeries/10, 1), overflow),
			unmatched:      newNames(maxSeries, overflow), // only domains that have rules are counted here
		},
		withinRules: withinRules{
			limits: metric.NewNames(2*maxSeries, overflow, &limitSeries{Domain: overflow, Rule: overflow, Limit: overflow}),
			classes: metric.NewNames(2*maxSeries, overflow, &classSeries{Domain: overflow, Rule: overflow, Limit: overflow,
				Class: overflow}),
		},
	}
}

// ofRule returns the series of a rule, or nil if the rule's metric name depends on the request. Rules may use twice as
// many names as requests, so requests cannot take all the room.
func (m *metrics) ofRule(r *descriptor.Rule) *series {
	if r.DetailedMetric || r.MetricValues != nil {
		return nil
	}
	s := m.named.Add(r.Path, 2, func(path string) *series {
		s := newSeries(path, len(r.Domain))
		if m.noDots {
			s.dotless = withoutDots(r.Domain)
			for _, l := range r.Levels {
				s.dotless += "." + withoutDots(l.Key)
				if l.Value != "" {
					s.dotless += "_" + withoutDots(l.Value)
				}
			}
		}
		return s
	})
	if s == nil {
		return m.named.Other
	}
	s.always.Or(alwaysRule)
	if slices.ContainsFunc(r.Limits, func(l descriptor.Limit) bool { return l.Penalty != nil }) {
		s.always.Or(alwaysPenalties)
	}
	return s
}

// countDomain counts n under the name of a domain. It uses b for a copy of the name.
func (m *metrics) countDomain(in *names, domain string, n int, b []byte) []byte {
	b = append(b[:0], domain...)
	s := in.Find(b, func(name string) *series {
		s := newSeries(name, len(name))
		if m.noDots {
			s.dotless = withoutDots(name)
		}
		return s
	})
	if s == in.Other {
		m.swallowed.Add(1)
	}
	s.Total.Add(uint64(n))
	return b
}

// hitCount is a number of hits by rule, which is a statistic of envoyproxy/ratelimit and, if it has a name, a metric of
// ours.
type hitCount struct {
	name, help string
	statistic  string // the end of its name in envoyproxy/ratelimit
	of         func(*series) *atomic.Uint64
	unlimited  bool // the metric includes hits under unlimited rules, which envoyproxy/ratelimit does not count
}

var hitCounts = []hitCount{
	{"ratelimitd_rule_hits_total", "Hits that the rule evaluated.",
		"total_hits", func(s *series) *atomic.Uint64 { return &s.Total }, true},
	{"ratelimitd_rule_over_limit_hits_total", "Hits over the limit, enforced or not.",
		"over_limit", func(s *series) *atomic.Uint64 { return &s.Over }, false},
	{"ratelimitd_rule_near_limit_hits_total", "Admitted hits above NEAR_LIMIT_RATIO of the limit.",
		"near_limit", func(s *series) *atomic.Uint64 { return &s.Near }, false},
	{"", "",
		"over_limit_with_local_cache", func(s *series) *atomic.Uint64 { return &s.Cached }, false},
	{"", "",
		"within_limit", func(s *series) *atomic.Uint64 { return &s.Within }, false},
	{"ratelimitd_rule_shadow_mode_hits_total",
		"Hits over the limit that passed, because none is enforced.",
		"shadow_mode", func(s *series) *atomic.Uint64 { return &s.Shadow }, false},
}

// byRule reads a number of all series that show it even while it is zero, or have some.
func (m *metrics) byRule(of func(*series) uint64, always uint32) func(metric.Emit) {
	return func(emit metric.Emit) {
		for _, s := range m.named.All() {
			if count := of(s); count > 0 || s.always.Load()&always != 0 {
				emit(float64(count), s.Domain, s.Rule)
			}
		}
	}
}

// families declares all metrics of the limiter.
func (m *metrics) families() []metric.Family {
	ruleLabels := []string{"domain", "rule"} // the rule has the whole path, at any depth
	var all []metric.Family
	for _, h := range hitCounts {
		if h.name == "" {
			continue
		}
		all = append(all, metric.Family{Name: h.name, Help: h.help, Labels: ruleLabels,
			Counts: m.byRule(func(s *series) uint64 {
				if h.unlimited {
					return h.of(s).Load() + s.Unlimited.Load()
				}
				return h.of(s).Load()
			}, alwaysRule)})
	}
	return append(all, m.limitHits(), m.classFamily(),
		metric.Family{Name: "ratelimitd_rule_penalties_total", Help: "Penalties that started, enforced or not.",
			Labels: ruleLabels,
			Counts: m.byRule(func(s *series) uint64 { return s.Penalties.Load() }, alwaysPenalties)},
		metric.Family{Name: "ratelimitd_no_rule_requests_total",
			Help: "Requests that passed because no rule matches.", Labels: []string{"domain"},
			Counts: func(emit metric.Emit) {
				for _, s := range m.unmatched.All() {
					if n := s.Total.Load(); n > 0 {
						emit(float64(n), s.Domain)
					}
				}
			}},
		metric.Counters("ratelimitd_decisions_total", "Requests decided, by OK or OVER_LIMIT.", "code",
			[]string{OK.String(), OverLimit.String()}, m.decisions[OK:]),
		metric.Counter("ratelimitd_global_shadow_mode_total", "Requests over a limit that SHADOW_MODE let pass.",
			m.shadowed.Load),
		metric.Counter("ratelimitd_unknown_domain_requests_total", "Requests that passed because their domain has no rules.",
			m.unknown.Load),
		metric.Counter("ratelimitd_backend_errors_total", "Requests that the store did not answer.", m.failed.requests.Load),
		metric.Counters("ratelimitd_degraded_descriptors_total",
			"Descriptors that on_error decided.",
			"on_error", descriptor.OnErrorNames[descriptor.OnErrorError:], m.failed.descriptors[descriptor.OnErrorError:]),
		metric.Counter("ratelimitd_degraded_requests_total", "Requests that on_error decided.", m.failed.answered.Load),
		metric.Counter("ratelimitd_overridden_descriptors_total", "Descriptors decided with an operator's override.",
			m.overridden.Load),
		metric.Counter("ratelimitd_unusable_overrides_total",
			"Limits whose override the rule no longer allows.", m.unusable.Load),
		metric.Counters("ratelimitd_dropped_refunds_total",
			"Refunds that gave nothing back.",
			"reason", refundNames[:], m.refunds[:]),
		metric.Counters("ratelimitd_scale_corrections_total",
			"Entries for scale whose number was missing or above the maximum.",
			"reason", []string{"no_number", "above_max"}, m.unscaled[descriptor.ScaleNoNumber:]),
		metric.Counters("ratelimitd_reservations_total",
			"Steps of reservations, by result.", "result", reservationNames[:], m.reservations[:]),
		metric.Gauge("ratelimitd_metric_series", "Rule names in metrics.", m.named.Count),
		metric.Counter("ratelimitd_metric_series_overflow_total",
			"Hits counted under the name overflow, for lack of names.",
			m.swallowed.Load),
	)
}
