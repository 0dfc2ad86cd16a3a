package limiter

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// Totals are numbers of decisions since the replica started.
type Totals struct {
	Passed        uint64 `json:"passed"` // requests
	Denied        uint64 `json:"denied"`
	Shadowed      uint64 `json:"shadowed"`       // passed requests that only the global shadow mode let through
	UnknownDomain uint64 `json:"unknown_domain"` // requests whose domain has no rules
	Failed        uint64 `json:"failed"`         // requests that the backend could not answer
	// passed or denied requests that on_error decided without the backend
	OnError uint64 `json:"on_error"`
}

// RuleTotals are numbers of hits under a rule since the replica started.
type RuleTotals struct {
	Hits     uint64 `json:"hits"`
	Denied   uint64 `json:"denied"`
	Shadowed uint64 `json:"shadowed"` // hits over the limit that the rule's shadow mode let through
}

// Totals returns the numbers of all decisions.
func (l *Limiter) Totals() Totals {
	m := l.parts.metrics
	return Totals{
		Passed: m.decisions[OK].Load(), Denied: m.decisions[OverLimit].Load(), Shadowed: m.shadowed.Load(),
		UnknownDomain: m.unknown.Load(), Failed: m.failed.requests.Load(), OnError: m.failed.answered.Load(),
	}
}

// RuleTotals returns the numbers of each active rule, by Rule.Index, with the tree that they belong to; nil before the
// first Swap. A rule is nil if its metrics have names that depend on the request.
func (l *Limiter) RuleTotals() (*descriptor.Tree, func(index int) *RuleTotals) {
	s := l.snapshot.Load()
	if s == nil {
		return nil, nil
	}
	return s.tree, func(index int) *RuleTotals {
		series := s.series[index]
		if series == nil || series == l.parts.metrics.named.Other {
			return nil
		}
		return &RuleTotals{Hits: series.Total.Load() + series.Unlimited.Load(), Denied: series.Over.Load(),
			Shadowed: series.Shadow.Load()}
	}
}
