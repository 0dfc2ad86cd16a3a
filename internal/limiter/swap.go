package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Swap activates rules and settings for every decision that starts afterwards.
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
	next := &snapshot{
		tree: tree, settings: s, series: make([]*series, len(tree.Rules)),
		replicas: l.replicas, shares: shares(tree, l.replicas), overrides: l.overrides,
	}
	for i, r := range tree.Rules {
		next.series[i] = l.parts.metrics.ofRule(r)
		if r.Varies() {
			if next.limits == nil {
				next.limits = make([][]*limitSeries, len(tree.Rules))
			}
			next.limits[i] = l.parts.metrics.ofLimits(r)
		}
		if r.Needs&descriptor.NeedsClass != 0 {
			if next.classes == nil {
				next.classes = make([][][]*classSeries, len(tree.Rules))
			}
			next.classes[i] = l.parts.metrics.ofClasses(r)
		}
	}
	if l.parts.HotKeys != nil {
		next.hot = hotRulesOf(l.parts.HotKeys, tree, s.Shadow)
	}
	next.reports = l.parts.reports(&s)
	next.plain = l.plainRules(next)
	l.snapshot.Store(next)
}

// SetOverrides applies overrides to every decision that starts afterwards. It may be called before the first Swap.
func (l *Limiter) SetOverrides(s *override.Set) {
	l.change(func(next *snapshot) { next.overrides = s }, func() { l.overrides = s })
}

// Overrides returns the active overrides, or nil without any.
func (l *Limiter) Overrides() *override.Set {
	l.swapping.Lock()
	defer l.swapping.Unlock()
	return l.overrides
}

// SetReplicas sets how many replicas share the limits. Until then this one is alone.
func (l *Limiter) SetReplicas(n int) {
	l.change(func(next *snapshot) { next.replicas, next.shares = n, shares(next.tree, n) }, func() { l.replicas = n })
}

// change stores a setting for the next snapshots, and applies it immediately if there is a snapshot.
func (l *Limiter) change(apply func(next *snapshot), remember func()) {
	l.swapping.Lock()
	defer l.swapping.Unlock()
	remember()
	if now := l.snapshot.Load(); now != nil {
		next := *now
		apply(&next)
		next.plain = l.plainRules(&next)
		l.snapshot.Store(&next)
	}
}

// Loaded reports whether rules are active.
func (l *Limiter) Loaded() bool { return l.snapshot.Load() != nil }

// Tree returns the active rules, or nil before the first Swap.
func (l *Limiter) Tree() *descriptor.Tree {
	if s := l.snapshot.Load(); s != nil {
		return s.tree
	}
	return nil
}
