package limiter

import "github.com/ratelimitd/ratelimitd/internal/descriptor"

// Explain returns which rule in force a descriptor matches, and why. It counts nothing.
func (l *Limiter) Explain(domain string, entries []descriptor.Entry) descriptor.Explanation {
	tree := l.Tree()
	if tree == nil {
		return descriptor.Explanation{Reason: ErrNoRules.Error()}
	}
	return tree.Domain(domain).Explain(entries, l.keys)
}
