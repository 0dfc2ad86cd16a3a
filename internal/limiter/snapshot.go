package limiter

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// Settings are what the operator sets for all domains. The zero value enforces every rule and adds no headers.
type Settings struct {
	Shadow bool // every request passes; statuses still show what was over
	Quota  bool // every rule is in quota mode

	// Admission of domains that do not say; the zero value is descriptor.Independent.
	Admission descriptor.Admission

	// StopWhenOver counts a request of a domain with independent admission only in the limits that refuse it, if any
	// does: the reference's STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT. Counters are read first; here that is one atomic step.
	StopWhenOver bool

	// OnError is for domains and rules that do not say; the zero value is descriptor.OnErrorError. Where it is local,
	// this process gets a limit's share among Replicas; 0 means 1. Limiter.SetReplicas replaces the number.
	OnError  descriptor.OnError
	Replicas int

	Headers     descriptor.HeaderFamilies // what clients get, in domains that do not say; 0: none
	HeaderNames HeaderNames               // of descriptor.HeadersReference

	// CalendarMonths makes windows of one month that requests bring along those of the calendar, in UTC. For the months of rules it
	// is an option of descriptor.Compile.
	CalendarMonths bool

	// HideShadow leaves the current limit out of the statuses of shadow rules: Envoy makes x-ratelimit headers of it.
	HideShadow bool

	Metadata bool // answers carry dynamic metadata
	Explain  bool // dynamic metadata says which rule decided; implies Metadata

	// NearLimitRatio is the share of a limit above which hits count as near it; 0 means 0.8.
	NearLimitRatio float32
}

// HeaderNames are the client headers for a limit, what is left of it, and the seconds until it resets. The zero
// value means RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
type HeaderNames struct {
	Limit     string
	Remaining string
	Reset     string
}

// snapshot is everything that a decision reads besides the counters. It is immutable and swapped as a whole, so that
// no decision sees half of a change.
type snapshot struct {
	tree     *descriptor.Tree
	settings Settings
	series   []*Series            // by Rule.Index; nil where the name depends on the request
	shares   [][]descriptor.Limit // by Rule.Index; nil with one replica
	hot      *hotRules            // nil: hot keys are off
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
	next := &snapshot{tree: tree, settings: s, series: make([]*Series, len(tree.Rules)), shares: shares(tree, s.Replicas)}
	for i, r := range tree.Rules {
		next.series[i] = l.metrics.ofRule(r)
	}
	if l.hot != nil {
		next.hot = hotRulesOf(l.hot, tree, s.Shadow)
	}
	l.snapshot.Store(next)
}

// SetReplicas says how many processes share the limits, from now on in place of Settings.Replicas.
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

// Loaded says whether any rules have been put into force.
func (l *Limiter) Loaded() bool { return l.snapshot.Load() != nil }

// Tree returns the rules in force, nil before the first Swap.
func (l *Limiter) Tree() *descriptor.Tree {
	if s := l.snapshot.Load(); s != nil {
		return s.tree
	}
	return nil
}

// allOrNothing says whether the requests of a domain consume all or nothing.
func (s *Settings) allOrNothing(d *descriptor.Domain) bool {
	if d.Admission != descriptor.AdmissionDefault {
		return d.Admission == descriptor.AllOrNothing
	}
	return s.Admission == descriptor.AllOrNothing
}

// headers are the families of headers that clients of a domain get.
func (s *Settings) headers(d *descriptor.Domain) descriptor.HeaderFamilies {
	if d != nil && d.Headers != nil {
		return *d.Headers
	}
	return s.Headers
}
