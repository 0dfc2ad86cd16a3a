package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Settings are what the operator sets for all domains. The zero value enforces every rule and adds no headers.
type Settings struct {
	Shadow bool // every request passes; statuses still show which limits were exceeded
	Quota  bool // every rule is in quota mode

	// Admission is for domains that do not set their own. The zero value means descriptor.Independent.
	Admission descriptor.Admission

	// StopWhenOver applies to domains with independent admission. If any limit refuses a request, the request is counted
	// only in the limits that refuse it. It is the reference's STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT, but reading and
	// counting are one atomic step here.
	StopWhenOver bool

	// OnError is for domains and rules that do not set their own. The zero value means descriptor.OnErrorError. With local,
	// this process gets its share of a limit that is divided by Replicas; 0 means 1. Limiter.SetReplicas replaces Replicas.
	OnError  descriptor.OnError
	Replicas int

	Headers     descriptor.HeaderFamilies // headers for clients, in domains that do not set their own; 0: none
	HeaderNames HeaderNames               // the names for descriptor.HeadersReference

	// CalendarMonths makes windows of one month in requests' own limits follow the calendar in UTC. For rules' months
	// descriptor.Compile has the same option.
	CalendarMonths bool

	// HideShadow leaves the current limit out of the statuses of shadow rules, because Envoy writes it to x-ratelimit headers.
	HideShadow bool

	Metadata bool // answers carry dynamic metadata
	Explain  bool // dynamic metadata shows which rule decided; implies Metadata

	// NearLimitRatio is the share of a limit above which hits count as near it; 0 means 0.8.
	NearLimitRatio float32
}

// HeaderNames are the names of the client headers for a limit, its remaining hits, and the seconds until it resets. The
// zero value means RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
type HeaderNames struct {
	Limit     string
	Remaining string
	Reset     string
}

// snapshot is everything that a decision reads except the counters. It is immutable and replaced as a whole, so that no
// decision sees half of a change.
type snapshot struct {
	tree      *descriptor.Tree
	settings  Settings
	series    []*series            // by Rule.Index; nil for rules whose metric name depends on the request
	limits    [][]*limitSeries     // by Rule.Index and limit; nil for rules whose limits do not vary
	shares    [][]descriptor.Limit // by Rule.Index; nil with one replica
	hot       *hotRules            // nil: hot keys are off
	overrides *override.Set        // nil: there are none
	plain     []bool               // by Rule.Index: decisions are plain; nil: none is
}

// Swap puts rules and settings into force for every decision that begins afterwards.
func (l *Limiter) Swap(tree *descriptor.Tree, s Settings) {
	if s.NearLimitRatio == 0 {
		s.NearLimitRatio = 0.8
	}
	if s.HeaderNames == (HeaderNames{}) {
		s.HeaderNames = HeaderNames{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}
	}
	s.Metadata = s.Metadata || s.Explain
	l.swapping.Lock()
	defer l.swapping.Unlock()
	if l.replicas > 0 {
		s.Replicas = l.replicas
	}
	next := &snapshot{tree: tree, settings: s, series: make([]*series, len(tree.Rules)), shares: shares(tree, s.Replicas), overrides: l.overrides}
	for i, r := range tree.Rules {
		next.series[i] = l.metrics.ofRule(r)
		if r.Varies {
			if next.limits == nil {
				next.limits = make([][]*limitSeries, len(tree.Rules))
			}
			next.limits[i] = l.metrics.limits.ofRule(r)
		}
	}
	if l.hot != nil {
		next.hot = hotRulesOf(l.hot, tree, s.Shadow)
	}
	next.plain = l.plainRules(next)
	l.snapshot.Store(next)
}

// SetOverrides puts overrides into force for every decision that begins afterwards. It may be called before the first Swap.
func (l *Limiter) SetOverrides(s *override.Set) {
	l.swapping.Lock()
	defer l.swapping.Unlock()
	l.overrides = s
	if now := l.snapshot.Load(); now != nil {
		next := *now
		next.overrides = s
		next.plain = l.plainRules(&next)
		l.snapshot.Store(&next)
	}
}

// Overrides returns the overrides in force, or nil if there are none.
func (l *Limiter) Overrides() *override.Set {
	l.swapping.Lock()
	defer l.swapping.Unlock()
	return l.overrides
}

// SetReplicas sets how many processes share the limits. From then on n replaces Settings.Replicas.
func (l *Limiter) SetReplicas(n int) {
	l.swapping.Lock()
	defer l.swapping.Unlock()
	l.replicas = n
	if now := l.snapshot.Load(); now != nil {
		next := *now
		next.settings.Replicas, next.shares = n, shares(now.tree, n)
		l.snapshot.Store(&next)
	}
}

// Loaded reports whether rules have been put into force.
func (l *Limiter) Loaded() bool { return l.snapshot.Load() != nil }

// Tree returns the rules in force, or nil before the first Swap.
func (l *Limiter) Tree() *descriptor.Tree {
	if s := l.snapshot.Load(); s != nil {
		return s.tree
	}
	return nil
}

// allOrNothing reports whether a domain has all_or_nothing admission.
func (s *Settings) allOrNothing(d *descriptor.Domain) bool {
	if d.Admission != descriptor.AdmissionDefault {
		return d.Admission == descriptor.AllOrNothing
	}
	return s.Admission == descriptor.AllOrNothing
}

// headers returns the headers for a domain's clients.
func (s *Settings) headers(d *descriptor.Domain) (descriptor.HeaderFamilies, []descriptor.OwnHeader) {
	if d != nil && d.Headers != nil {
		return d.Headers.Families, d.Headers.Own
	}
	return s.Headers, nil
}
