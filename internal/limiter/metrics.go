package limiter

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// What is exported of a series even while it is zero.
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

	// always has what is exported even while it is zero: alwaysRule, alwaysPenalties. Bits take less memory than two booleans, and
	// there may be very many rules.
	always atomic.Uint32

	Total, Over, Near, Within, Shadow, Cached atomic.Uint64 // hits under limits

	Penalties atomic.Uint64 // that have begun

	Unlimited atomic.Uint64 // hits under an unlimited rule; no other counter includes them

	reference atomic.Pointer[string] // the prefix of its names in the reference's statistics; nil until it is first used
}

// metrics are the counters of rules and of decisions. Each rule's series is found when a snapshot is made. Only names that
// depend on a request are looked up while deciding, and their number is bounded.
type metrics struct {
	named          *names     // by "domain.rule"
	unknownDomains *names     // by domain without rules; Total counts the requests' descriptors
	unmatched      *names     // by domain; Total counts requests for which the domain has no rule
	limits         limitNames // of limits that vary

	decisions  [3]atomic.Uint64 // by Code
	shadowed   atomic.Uint64    // decisions that only the global shadow mode let through
	unknown    atomic.Uint64    // requests whose domain has no rules
	invalid    atomic.Uint64    // requests that are invalid, whatever the backend answers
	failed     failed
	overridden atomic.Uint64    // descriptors decided with an operator's override
	unusable   atomic.Uint64    // overrides that were looked up, and that their rule does not allow any more
	refunds    [2]atomic.Uint64 // dropped, by reason: too large, denied
	unscaled   [descriptor.ScaleResults]atomic.Uint64
	holds      [holdResults]atomic.Uint64
	swallowed  atomic.Uint64 // how often an overflow series was counted up
}

// failed counts what the backend could not answer.
type failed struct {
	requests    atomic.Uint64
	answered    atomic.Uint64    // requests that on_error has answered
	descriptors [5]atomic.Uint64 // by descriptor.OnError: those that it has answered
}

// The results of reservations in metrics.
const (
	holdReserved = iota
	holdRefused
	holdTooMany
	holdTooLarge
	holdCommitted
	holdProgress
	holdCancelled
	holdExtended
	holdUnknown
	holdLate
	holdResults
)

var holdNames = [holdResults]string{"reserved", "refused", "too_many", "too_large", "committed", "progress", "cancelled", "extended", "unknown", "late"}

// Why a refund is dropped.
const (
	refundTooLarge = iota
	refundDenied
)

func newMetrics(maxSeries int) *metrics {
	return &metrics{
		named:          newNames(maxSeries, overflow+"."+overflow),
		unknownDomains: newNames(max(maxSeries/10, 1), overflow),
		unmatched:      newNames(maxSeries, overflow), // only domains that have rules are counted here
		limits:         limitNames{max: 2 * maxSeries, overflow: &limitSeries{Domain: overflow, Rule: overflow, Limit: overflow}},
	}
}

// ofRule returns the series of a rule, or nil if the rule's metric name depends on the request. Rules may use twice as many
// names as requests, so requests cannot take all the room.
func (m *metrics) ofRule(r *descriptor.Rule) *series {
	if r.DetailedMetric || r.MetricValues != nil {
		return nil
	}
	s := m.named.lookUp([]byte(r.Path))
	if s == nil {
		s = m.named.addSeries(r.Path, len(r.Domain), 2*m.named.max)
	}
	if s == nil {
		return m.named.other
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
	s := in.find(b, len(b))
	if s == in.other {
		m.swallowed.Add(1)
	}
	s.Total.Add(uint64(n))
	return b
}

// Descriptions of the metrics by rule. The labels contain the whole path, at any depth.
var (
	ruleLabels = []string{"domain", "rule"}

	totalDesc      = prometheus.NewDesc("ratelimitd_rule_hits_total", "Hits that a rule was applied to, admitted or not.", ruleLabels, nil)
	overDesc       = prometheus.NewDesc("ratelimitd_rule_over_limit_hits_total", "Hits over the limit of a rule, also of rules in shadow mode.", ruleLabels, nil)
	nearDesc       = prometheus.NewDesc("ratelimitd_rule_near_limit_hits_total", "Hits admitted above the near-limit ratio of a rule.", ruleLabels, nil)
	withinDesc     = prometheus.NewDesc("ratelimitd_rule_within_limit_hits_total", "Hits admitted by a rule.", ruleLabels, nil)
	shadowDesc     = prometheus.NewDesc("ratelimitd_rule_shadow_mode_hits_total", "Hits over the limit of a rule that were let through because it is in shadow mode, or because none of its limits is enforced for the caller.", ruleLabels, nil)
	cachedDesc     = prometheus.NewDesc("ratelimitd_rule_over_limit_cache_hits_total", "Hits that the over-limit cache refused without asking the backend.", ruleLabels, nil)
	penaltiesDesc  = prometheus.NewDesc("ratelimitd_rule_penalties_total", "Penalties that began under a rule, also of limits that are not enforced.", ruleLabels, nil)
	decisionsDesc  = prometheus.NewDesc("ratelimitd_decisions_total", "Requests decided.", []string{"code"}, nil)
	shadowedDesc   = prometheus.NewDesc("ratelimitd_global_shadow_mode_total", "Requests over a limit that the global shadow mode let through.", nil, nil)
	unknownDesc    = prometheus.NewDesc("ratelimitd_unknown_domain_requests_total", "Requests for a domain without rules; they pass.", nil, nil)
	unmatchedDesc  = prometheus.NewDesc("ratelimitd_no_rule_requests_total", "Requests for a domain with rules of which none matches; they pass.", []string{"domain"}, nil)
	invalidDesc    = prometheus.NewDesc("ratelimitd_invalid_requests_total", "Requests that were refused because they are malformed, or because no rules are loaded.", nil, nil)
	failuresDesc   = prometheus.NewDesc("ratelimitd_backend_errors_total", "Requests that the backend could not answer.", nil, nil)
	degradedDesc   = prometheus.NewDesc("ratelimitd_degraded_descriptors_total", "Descriptors that on_error answered because the backend could not.", []string{"on_error"}, nil)
	onErrorDesc    = prometheus.NewDesc("ratelimitd_degraded_requests_total", "Requests answered by on_error because the backend could not count them.", nil, nil)
	overriddenDesc = prometheus.NewDesc("ratelimitd_overridden_descriptors_total", "Descriptors decided with the numbers of an operator's override.", nil, nil)
	unusableDesc   = prometheus.NewDesc("ratelimitd_unusable_overrides_total", "Limits that kept the rule's numbers, because the rule no longer allows the override's.", nil, nil)
	refundsDesc    = prometheus.NewDesc("ratelimitd_dropped_refunds_total", "Refunds of a limit that gave nothing back: too_large: of more hits than the window holds; denied: the domain has refunds: deny.", []string{"reason"}, nil)
	unscaledDesc   = prometheus.NewDesc("ratelimitd_scale_corrections_total", "Entries for scale whose number was not used as it is, by reason: no_number: it is no whole number above 0, and counted as 1; above_max: it is larger than max, and counted as max.", []string{"reason"}, nil)
	holdsDesc      = prometheus.NewDesc("ratelimitd_reservations_total", "Steps of reservations, by result. late is counted besides committed: the reservation had expired.", []string{"result"}, nil)
	seriesDesc     = prometheus.NewDesc("ratelimitd_metric_series", "Rule names in metrics.", nil, nil)
	swallowedDesc  = prometheus.NewDesc("ratelimitd_metric_series_overflow_total", "How often a rule or an unknown domain was counted under the overflow series, because there are too many names or the name is too long.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		totalDesc, overDesc, nearDesc, withinDesc, shadowDesc, cachedDesc, penaltiesDesc, limitRefusedDesc, limitPassedDesc, limitWarnedDesc,
		decisionsDesc, shadowedDesc, unknownDesc, unmatchedDesc, invalidDesc, failuresDesc, degradedDesc, onErrorDesc, overriddenDesc, unusableDesc, refundsDesc, unscaledDesc, holdsDesc, seriesDesc, swallowedDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for _, s := range m.named.all() {
		always := s.always.Load()&alwaysRule != 0
		hits := func(d *prometheus.Desc, n uint64) {
			if n > 0 || always {
				counter(d, n, s.Domain, s.Rule)
			}
		}
		unlimited := s.Unlimited.Load()
		hits(totalDesc, s.Total.Load()+unlimited)
		hits(overDesc, s.Over.Load())
		hits(nearDesc, s.Near.Load())
		hits(withinDesc, s.Within.Load()+unlimited)
		hits(shadowDesc, s.Shadow.Load())
		hits(cachedDesc, s.Cached.Load())
		if n := s.Penalties.Load(); n > 0 || s.always.Load()&alwaysPenalties != 0 {
			counter(penaltiesDesc, n, s.Domain, s.Rule)
		}
	}
	m.limits.collect(counter)
	counter(decisionsDesc, m.decisions[OK].Load(), OK.String())
	counter(decisionsDesc, m.decisions[OverLimit].Load(), OverLimit.String())
	counter(shadowedDesc, m.shadowed.Load())
	counter(unknownDesc, m.unknown.Load())
	for _, s := range m.unmatched.all() {
		if n := s.Total.Load(); n > 0 {
			counter(unmatchedDesc, n, s.Domain)
		}
	}
	counter(onErrorDesc, m.failed.answered.Load())
	counter(invalidDesc, m.invalid.Load())
	counter(failuresDesc, m.failed.requests.Load())
	for how := descriptor.OnErrorError; how <= descriptor.OnErrorLocal; how++ {
		counter(degradedDesc, m.failed.descriptors[how].Load(), descriptor.OnErrorNames[how])
	}
	counter(overriddenDesc, m.overridden.Load())
	counter(unusableDesc, m.unusable.Load())
	counter(refundsDesc, m.refunds[refundTooLarge].Load(), "too_large")
	counter(refundsDesc, m.refunds[refundDenied].Load(), "denied")
	counter(unscaledDesc, m.unscaled[descriptor.ScaleNoNumber].Load(), "no_number")
	counter(unscaledDesc, m.unscaled[descriptor.ScaleAboveMax].Load(), "above_max")
	for result, name := range holdNames {
		counter(holdsDesc, m.holds[result].Load(), name)
	}
	counter(swallowedDesc, m.swallowed.Load())
	ch <- prometheus.MustNewConstMetric(seriesDesc, prometheus.GaugeValue, float64(m.named.series.Load()))
}
